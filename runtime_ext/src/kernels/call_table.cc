#include "kernels/call_table.h"

#include <algorithm>
#include <utility>

namespace flexcomp {
namespace {

// Stands for the shape of a scalar, which has none.
const int64_t kNoShape = 0;

std::byte* PageBehind(std::byte* place) {
  return place + (kPage - reinterpret_cast<uintptr_t>(place) % kPage) % kPage;
}

}  // namespace

TVMFFIAny IntArg(int64_t value) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

TVMFFIAny TensorArg(DLTensor* tensor) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIDLTensorPtr;
  any.v_ptr = tensor;
  return any;
}

DLTensor MakeTensor(const TensorType& type, std::byte* data) {
  const bool scalar = type.shape.empty();
  // DLPack has no read-only tensors, hence the casts; kernels do not write shapes.
  return DLTensor{data,
                  DLDevice{kDLCPU, 0},
                  static_cast<int32_t>(type.shape.size()),
                  type.dtype,
                  const_cast<int64_t*>(scalar ? &kNoShape : type.shape.data()),
                  const_cast<int64_t*>(scalar ? &kNoShape : type.strides.data()),
                  0};
}

CallTable::CallTable(const Program& program, Kernels kernels) : kernels_(std::move(kernels)) {
  // As if every step were of the layer that takes most: unused memory costs nothing. Pointers into these must stay
  // valid.
  const Most most = MostOf(program);
  const size_t args = most.steps * MostArgs(program, [](const Arg&) { return true; });
  tensors_.reserve(args);
  args_.reserve(args);
  valid_.reserve(most.steps * MostArgs(program, [](const Arg& arg) { return arg.kind == ArgKind::kValid; }));
  checks_.reserve(most.steps * MostArgs(program, [](const Arg& arg) { return !arg.bounds.empty(); }));
  fetches_.reserve(most.steps * MostArgs(program, [](const Arg& arg) { return arg.kind == ArgKind::kRows; }));
  calls_.reserve(most.steps);
}

void CallTable::Prepare(const Program& program, const Rung& rung, std::span<const Step> steps, Places arena) noexcept {
  tensors_.clear();
  args_.clear();
  valid_.clear();
  checks_.clear();
  fetches_.clear();
  calls_.clear();
  for (const Step& step : steps) {
    const Layer& layer = program.layers[step.layer];
    const TVMFFIAny* first_arg = args_.data() + args_.size();
    const BoundsCheck* first_check = checks_.data() + checks_.size();
    const RowsFetch* fetch = nullptr;
    const Arg* before = nullptr;
    for (const Arg& arg : layer.args) {
      const Arg* previous = std::exchange(before, &arg);
      std::byte* data = nullptr;
      switch (arg.kind) {
        case ArgKind::kFirst:
          args_.push_back(IntArg(step.first));
          continue;
        case ArgKind::kCount:
          args_.push_back(IntArg(step.count));
          continue;
        case ArgKind::kValid:
          args_.push_back(IntArg(kAllRows));
          valid_.push_back(&args_.back());
          continue;
        case ArgKind::kValue:
          data = arena.At(rung.value_at[arg.value]) + arg.offset;
          if (!arg.bounds.empty())
            checks_.push_back({data, arg.type.nbytes / (arg.type.dtype.bits / 8), arg.type.dtype.bits == 64, arg.bounds});
          break;
        case ArgKind::kWeight:
          data = arena.At(step.weights_at) + arg.offset;
          break;
        case ArgKind::kScratch:
          data = arena.At(step.scratch_at) + arg.offset;
          break;
        case ArgKind::kRows:
          data = arena.At(step.scratch_at) + arg.offset;
          fetches_.push_back({arena.At(rung.value_at[previous->value]) + previous->offset, previous->type.dtype.bits == 64,
                              static_cast<uint64_t>(arg.type.shape[0]), &arg.table, arg.row_nbytes(), data,
                              PageBehind(data + arg.type.nbytes)});
          fetch = &fetches_.back();
          break;
      }
      tensors_.push_back(MakeTensor(arg.type, data));
      args_.push_back(TensorArg(&tensors_.back()));
    }
    const auto check_count = static_cast<uint32_t>(checks_.data() + checks_.size() - first_check);
    calls_.push_back({kernels_.compute[step.layer], first_arg, static_cast<int32_t>(layer.args.size()), step.layer,
                      check_count, layer.exchanges(), first_check, fetch});
  }
}

void CallTable::SetValid(int64_t rows) noexcept {
  for (TVMFFIAny* arg : valid_) arg->v_int64 = rows;
}

}  // namespace flexcomp

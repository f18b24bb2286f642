#include "cuda/loaded_kernel.h"

#include <dlpack/dlpack.h>

#include <climits>

#include "base/error.h"

namespace flexcomp::cuda {
namespace {

constexpr Result kInvalidImage = 200, kNoBinary = 209, kInvalidPtx = 218;

std::string ArchitecturesOf(const DeviceKernel& kernel) {
  std::string list;
  for (const Image& image : kernel.images)
    list += (list.empty() ? "" : ", ") + std::string(image.ptx ? "compute_" : "sm_") + std::to_string(image.architecture);
  return list;
}

}  // namespace

LoadedKernel::LoadedKernel(Device& device, const DeviceKernel& kernel, const Layer& layer) : device_(device), launches_(kernel.launches) {
  uint64_t integers = 0;
  for (size_t i = 0; i < layer.args.size() && i < kMostParameters; ++i) {
    const ArgKind kind = layer.args[i].kind;
    if (kind == ArgKind::kFirst || kind == ArgKind::kCount) integers |= uint64_t{1} << i, count_at_ = static_cast<int>(i);
  }
  bool fits = integers == kernel.integers && layer.args.size() <= kMostParameters;
  for (const cuda::Launch& launch : launches_)
    for (const uint8_t position : launch.arguments) fits = fits && position < layer.args.size();
  if (!fits) RaiseError("ArtifactError", "the library's kernel ", layer.kernel, " does not take what layer ", layer.name, " gives it");

  const Image* image = ChooseImage(kernel, device_.architecture());
  if (image == nullptr)
    RaiseError("TargetError", "the library has kernels for ", ArchitecturesOf(kernel), "; the GPU here, ", device_.name(), ", is sm_",
               device_.architecture());
  const auto load = [&] {
    return device_.Try("cuModuleLoadData", [&](const Driver& driver) { return driver.ModuleLoadData(&module_, image->bytes.data()); });
  };
  const auto is_unfit = [](const Refusal& refused) {
    return refused.result == kInvalidImage || refused.result == kNoBinary || refused.result == kInvalidPtx;
  };
  Refusal refusal = load();
  // Machine code for an earlier GPU of the same generation need not run on one that is soldered to a processor, nor the other way round.
  if (is_unfit(refusal) && !image->ptx) {
    const Image* const ptx = ChooseImage(kernel, device_.architecture(), false);
    if (ptx != nullptr) image = ptx, refusal = load();
  }
  if (refusal) {
    module_ = nullptr;
    const bool unfit = is_unfit(refusal);
    device_.Raise(refusal, unfit                            ? "TargetError"
                           : refusal.result == kOutOfMemory ? "BudgetError"
                                                            : "ExecutionError");
  }
  try {
    Find(kernel);
  } catch (...) {
    device_.Insist("cuModuleUnload", [&](const Driver& driver) { return driver.ModuleUnload(module_); });
    throw;
  }
}

void LoadedKernel::Find(const DeviceKernel& kernel) {
  for (const cuda::Launch& launch : kernel.launches)
    device_.Do("cuModuleGetFunction", [&](const Driver& driver) {
      return driver.ModuleGetFunction(&functions_.emplace_back(), module_, launch.name.c_str());
    });
}

LoadedKernel::~LoadedKernel() {
  device_.Insist("cuModuleUnload", [&](const Driver& driver) { return driver.ModuleUnload(module_); });
}

Refusal LoadedKernel::Launch(Stream stream, const TVMFFIAny* args) const noexcept {
  const int64_t count = count_at_ < 0 ? 0 : args[count_at_].v_int64;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const cuda::Launch& launch = launches_[i];
    uint64_t values[kMostParameters];
    void* parameters[kMostParameters];
    for (size_t k = 0; k < launch.arguments.size(); ++k) {
      const TVMFFIAny& arg = args[launch.arguments[k]];
      values[k] = arg.type_index == kTVMFFIInt ? static_cast<uint64_t>(arg.v_int64)
                                               : reinterpret_cast<uint64_t>(static_cast<const DLTensor*>(arg.v_ptr)->data);
      parameters[k] = &values[k];
    }
    unsigned blocks[3];
    for (int axis = 0; axis < 3; ++axis) {
      const uint64_t extent = launch.blocks[axis].fixed + static_cast<uint64_t>(count) * launch.blocks[axis].per_count;
      if (extent > INT_MAX) return {kInvalidValue, "cuLaunchKernel"};
      blocks[axis] = static_cast<unsigned>(extent);
    }
    const auto call = [&](const Driver& driver) {
      return driver.LaunchKernel(functions_[i], blocks[0], blocks[1], blocks[2], launch.threads[0], launch.threads[1],
                                 launch.threads[2], 0, stream, parameters, nullptr);
    };
    // A kernel that has begun is to end.
    const Refusal refusal = i == 0 ? device_.Try("cuLaunchKernel", call) : device_.Insist("cuLaunchKernel", call);
    if (refusal && i > 0) device_.Lose(refusal);
    if (refusal) return refusal;
  }
  return {};
}

}  // namespace flexcomp::cuda

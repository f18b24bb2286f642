#include "api/tensors.h"

#include <optional>

#include "api/status.h"
#include "api/structs.h"
#include "base/error.h"

namespace flexcomp::api {
namespace {

struct NamedDtype {
  flexcomp_dtype dtype;
  uint8_t code, bits;
};

constexpr NamedDtype kDtypes[] = {
    {FLEXCOMP_FLOAT32, kDLFloat, 32},
    {FLEXCOMP_FLOAT16, kDLFloat, 16},
    {FLEXCOMP_BFLOAT16, kDLBfloat, 16},
    {FLEXCOMP_FLOAT64, kDLFloat, 64},
    {FLEXCOMP_BOOL, kDLBool, 8},
    {FLEXCOMP_INT8, kDLInt, 8},
    {FLEXCOMP_UINT8, kDLUInt, 8},
    {FLEXCOMP_INT16, kDLInt, 16},
    {FLEXCOMP_UINT16, kDLUInt, 16},
    {FLEXCOMP_INT32, kDLInt, 32},
    {FLEXCOMP_UINT32, kDLUInt, 32},
    {FLEXCOMP_INT64, kDLInt, 64},
    {FLEXCOMP_UINT64, kDLUInt, 64},
};

constexpr const char* kKinds[] = {"input", "output", "state"};

DLDataType DataTypeOf(flexcomp_dtype dtype, const std::string& name) {
  for (const NamedDtype& one : kDtypes)
    if (one.dtype == dtype) return {one.code, one.bits, 1};
  RaiseError("InputError", "tensor \"", name, "\" is given with an unknown element type, ", dtype);
}

// Throws InputError unless the caller's memory is that of a tensor of this type. What is not stated is taken for right.
DLTensor Tensor(const Described& wanted, const flexcomp_tensor& given) {
  const TensorType& type = wanted.type;
  if (given.nbytes != type.nbytes)
    RaiseError("InputError", "tensor \"", wanted.name, "\" is given with ", given.nbytes, " bytes; ", ToString(type), " has ", type.nbytes);
  if (given.data == nullptr && type.nbytes > 0) RaiseError("InputError", "tensor \"", wanted.name, "\" is given without memory: its data is NULL");
  if (given.rank < 0 || (given.shape == nullptr && given.rank != 0))
    RaiseError("InputError", "tensor \"", wanted.name, "\" is given with a rank of ", given.rank, given.rank < 0 ? "" : " and no shape");
  DLTensor tensor{};
  tensor.data = given.data;
  tensor.device = {kDLCPU, 0};
  tensor.dtype = given.dtype == FLEXCOMP_ANY ? type.dtype : DataTypeOf(given.dtype, wanted.name);
  const bool stated = given.shape != nullptr;
  tensor.ndim = stated ? given.rank : static_cast<int32_t>(type.shape.size());
  tensor.shape = const_cast<int64_t*>(stated ? given.shape : type.shape.data());
  return tensor;
}

}  // namespace

size_t CountOf(const Program& program, flexcomp_kind kind) {
  switch (kind) {
    case FLEXCOMP_INPUT: return program.inputs.size();
    case FLEXCOMP_OUTPUT: return program.outputs.size();
    case FLEXCOMP_STATE: return program.states.size();
    default: RaiseError("InputError", "there is no kind ", kind, " of tensors");
  }
}

Described At(const Program& program, flexcomp_kind kind, uint32_t index) {
  const size_t count = CountOf(program, kind);
  if (index >= count) RaiseError("InputError", "there is no ", kKinds[kind], " ", index, ": the network has ", count);
  if (kind == FLEXCOMP_STATE) return {program.states[index].input, program.states[index].type};
  const Port& port = (kind == FLEXCOMP_INPUT ? program.inputs : program.outputs)[index];
  return {port.name, port.type};
}

flexcomp_dtype DtypeOf(DLDataType dtype) {
  for (const NamedDtype& one : kDtypes)
    if (one.code == dtype.code && one.bits == dtype.bits && dtype.lanes == 1) return one.dtype;
  RaiseError(kUnsupported, "the C interface has no element type ", DtypeName(dtype));
}

Bound::Bound(const Program& program, flexcomp_kind kind, const flexcomp_tensor* tensors, uint32_t count, uint32_t first, const Fit& fit) {
  const char* const argument = kind == FLEXCOMP_OUTPUT  ? "outputs"
                               : kind == FLEXCOMP_INPUT ? "inputs"
                                                        : "tensor";
  if (count > 0) RequirePointer(tensors, argument);
  made_.reserve(count);
  pointers_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const Described whole = At(program, kind, first + i);
    const Described wanted{whole.name, fit.padded() ? (kind == FLEXCOMP_INPUT ? fit.inputs : fit.outputs)[i] : whole.type};
    // Elements of a caller's array lie as far apart as the caller's header says.
    const auto* element = reinterpret_cast<const flexcomp_tensor*>(reinterpret_cast<const char*>(tensors) + i * tensors->size);
    if (element->size != tensors->size)
      RaiseError("InputError", "the member \"size\" of \"", wanted.name, "\" is not that of the array's first tensor");
    const flexcomp_tensor given = Taken(element, sizeof(flexcomp_tensor), wanted.name.c_str());
    if (kind == FLEXCOMP_OUTPUT && given.data == nullptr) {
      pointers_.push_back(nullptr);
      continue;
    }
    made_.push_back(Tensor(wanted, given));
    pointers_.push_back(&made_.back());
  }
}

namespace {

void RequireInputs(const Program& program, uint32_t count) {
  if (count != program.inputs.size()) RaiseError("InputError", "the network has ", program.inputs.size(), " inputs, not ", count);
}

}  // namespace

Fit FitOf(const Shapes& shapes, const flexcomp_tensor* inputs, uint32_t count) {
  RequireInputs(shapes[0], count);
  if (!shapes.fits()) return {};
  const std::vector<Port>& ports = shapes[0].inputs;
  if (count > 0) RequirePointer(inputs, "inputs");
  std::vector<std::span<const int64_t>> extents;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* element = reinterpret_cast<const flexcomp_tensor*>(reinterpret_cast<const char*>(inputs) + i * inputs->size);
    const flexcomp_tensor given = Taken(element, sizeof(flexcomp_tensor), ports[i].name.c_str());
    const auto differs = [&](const auto& program) { return program->inputs[i].type.shape != ports[i].type.shape; };
    if (given.shape != nullptr && given.rank >= 0) extents.emplace_back(given.shape, static_cast<size_t>(given.rank));
    else if (std::ranges::none_of(shapes.programs(), differs)) extents.emplace_back(ports[i].type.shape);
    else RaiseError("InputError", "tensor \"", ports[i].name, "\" is given without its shape, and the library holds ", shapes.size(), ": state it");
  }
  return shapes.FitOf(extents);
}

Ports::Ports(const Shapes& shapes, const flexcomp_tensor* in, uint32_t input_count, const flexcomp_tensor* out, uint32_t output_count)
    : fit(FitOf(shapes, in, input_count)),
      inputs(shapes[fit.shape], FLEXCOMP_INPUT, in, input_count, 0, fit),
      outputs(shapes[fit.shape], FLEXCOMP_OUTPUT, out, output_count, 0, fit) {}

}  // namespace flexcomp::api

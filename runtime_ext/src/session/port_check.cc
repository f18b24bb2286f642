#include "session/port_check.h"

#include "base/error.h"

namespace flexcomp {
namespace {

std::string PlaceName(const DLDevice& device) {
  if (device.device_type == kDLCUDA) return "that of GPU " + std::to_string(device.device_id);
  return "that of DLPack's device (" + std::to_string(device.device_type) + ", " + std::to_string(device.device_id) + ")";
}

std::string StridesOf(const DLTensor& tensor) {
  std::string text = "[";
  for (int32_t i = 0; i < tensor.ndim; ++i) text += (i ? ", " : "") + std::to_string(tensor.strides[i]);
  return text + "]";
}

}  // namespace

void CheckTensor(const std::string& name, const TensorType& want, const DLTensor& tensor, bool on_cuda) {
  // Not everyone has a bfloat16: its bits may come as uint16.
  const bool bits = want.dtype.code == kDLBfloat && tensor.dtype.code == kDLUInt;
  bool fits = (tensor.dtype.code == want.dtype.code || bits) && tensor.dtype.bits == want.dtype.bits &&
              tensor.dtype.lanes == 1 && tensor.ndim == static_cast<int32_t>(want.shape.size());
  for (int32_t i = 0; fits && i < tensor.ndim; ++i) fits = tensor.shape[i] == want.shape[i];
  if (!fits) {
    TensorType given{tensor.dtype, {tensor.shape, tensor.shape + tensor.ndim}, {}, 0};
    RaiseError("InputError", "tensor \"", name, "\" must be ", ToString(want), ", not ", ToString(given));
  }
  const DLDevice device = tensor.device;
  const bool cuda = device.device_type == kDLCUDAHost || device.device_type == kDLCUDAManaged ||
                    (device.device_type == kDLCUDA && device.device_id == 0);  // the GPU that sessions use
  if (device.device_type != kDLCPU && !(on_cuda && cuda))
    RaiseError("InputError", "tensor \"", name, "\" must lie in CPU memory", on_cuda ? " or that of the first GPU" : "", ", not in ", PlaceName(device));
  if (tensor.strides == nullptr || want.nbytes == 0) return;
  for (int32_t i = 0; i < tensor.ndim; ++i)
    if (tensor.shape[i] != 1 && tensor.strides[i] != want.strides[i])
      RaiseError("InputError", "tensor \"", name, "\" must be contiguous; its strides are ", StridesOf(tensor));
}

}  // namespace flexcomp

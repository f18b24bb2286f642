#include "cuda/device_tensor.h"

#include <utility>

#include "base/process_mark.h"

namespace flexcomp::cuda {
namespace {

// An allocator as tvm_ffi expects: one for each tensor, stored inside the tensor.
class Memory {
 public:
  explicit Memory(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  void AllocData(DLTensor* tensor, uint64_t nbytes) {
    tensor->data = nullptr;
    if (nbytes == 0) return;
    DevicePointer data = 0;
    device_->Do("cuMemAlloc", [&](const Driver& driver) { return driver.MemoryAllocate(&data, nbytes); });
    tensor->data = reinterpret_cast<void*>(data);
  }
  void FreeData(DLTensor* tensor) noexcept {
    // A forked process has a copy of the tensor, and nothing of the device.
    if (tensor->data == nullptr || !process_.IsThisProcess()) return;
    const auto data = reinterpret_cast<DevicePointer>(tensor->data);
    device_->Insist("cuMemFree", [&](const Driver& driver) { return driver.MemoryFree(data); });
  }

 private:
  std::shared_ptr<Device> device_;
  ProcessMark process_;
};

}  // namespace

tvm::ffi::Tensor NewTensor(std::shared_ptr<Device> device, const TensorType& type) {
  const DLDevice place{kDLCUDA, device->ordinal()};
  return tvm::ffi::Tensor::FromNDAlloc(Memory(std::move(device)), tvm::ffi::ShapeView(type.shape.data(), type.shape.size()), type.dtype,
                                       place, type.nbytes);
}

}  // namespace flexcomp::cuda

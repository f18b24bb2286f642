// A kernel in a GPU's memory.
#pragma once

#include <tvm/ffi/c_api.h>

#include <vector>

#include "cuda/device.h"
#include "cuda/device_kernel.h"
#include "program/program.h"

namespace flexcomp::cuda {

class LoadedKernel {
 public:
  // Of a layer with arguments `args`. Throws TargetError without an image for this GPU or if the driver refuses the
  // image, ArtifactError if the kernel takes other arguments.
  LoadedKernel(Device& device, const DeviceKernel& kernel, const Layer& layer);
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  // Gives its launches to a stream.
  Refusal Launch(Stream stream, const TVMFFIAny* args) const noexcept;

 private:
  void Find(const DeviceKernel& kernel);

  Device& device_;
  Module module_ = nullptr;
  std::vector<cuda::Launch> launches_;
  std::vector<Function> functions_;  // of each launch
  int count_at_ = -1;                // which argument is the number of blocks
};

}  // namespace flexcomp::cuda

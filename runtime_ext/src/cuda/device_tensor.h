// Tensors in a device's own memory that callers keep.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <memory>

#include "cuda/device.h"
#include "program/program.h"

namespace flexcomp::cuda {

// The contents are undefined. The tensor keeps the device, which may so outlive the session. Throws ExecutionError.
tvm::ffi::Tensor NewTensor(std::shared_ptr<Device> device, const TensorType& type);

}  // namespace flexcomp::cuda

// Whether a caller's tensor fits a port or a state.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <string>

#include "program/program.h"

namespace flexcomp {

// Throws InputError, with the name, for another type, shape, device or order in memory. `on_cuda`: the tensor may lie
// on a GPU.
void CheckTensor(const std::string& name, const TensorType& want, const DLTensor& tensor, bool on_cuda);

// Where its elements begin.
inline std::byte* DataOf(const DLTensor& tensor) { return static_cast<std::byte*>(tensor.data) + tensor.byte_offset; }

}  // namespace flexcomp

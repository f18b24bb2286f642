// The inputs and outputs of a model. Their memory is in the session's arena.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flexcomp::runner {

struct Port {
  std::string name;
  std::vector<int64_t> shape;
  DLDataType dtype;
  size_t nbytes;

  bool is_float32() const { return dtype.code == kDLFloat && dtype.bits == 32; }
  bool is_float16() const { return dtype.code == kDLFloat && dtype.bits == 16; }
  bool is_bfloat16() const { return dtype.code == kDLBfloat && dtype.bits == 16; }
  bool is_float64() const { return dtype.code == kDLFloat && dtype.bits == 64; }
};

// From "inputs" or "outputs" of a program's description. Throws std::runtime_error.
std::vector<Port> ParsePorts(const tvm::ffi::json::Array& described);

size_t NbytesOf(const Port& port);

// The memory of a port, from the argument of a callback.
inline std::byte* DataOf(const tvm::ffi::AnyView& tensor) {
  return static_cast<std::byte*>(tensor.cast<DLTensor*>()->data);
}

}  // namespace flexcomp::runner

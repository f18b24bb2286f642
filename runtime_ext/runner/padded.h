// Inputs that are shorter than the library's shapes, and the outputs that come of them.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ports.h"

namespace flexcomp::runner {

using ShapesByName = std::map<std::string, std::vector<int64_t>>;

// Ports with the extents that `given`, tensors by name, have along axes that the library pads or cuts, as its record of padding says
// (flexcomp/runtime/padding.py). `key` is "inputs" or "outputs". A library without a record pads nothing.
std::vector<Port> Sized(std::vector<Port> ports, const tvm::ffi::json::Object& info, const char* key, const ShapesByName& given);

// Tensors of ports in memory of their own.
class Tensors {
 public:
  explicit Tensors(const std::vector<Port>& ports);

  // For a call, as the session's own tensors come to a callback.
  std::vector<tvm::ffi::AnyView> views();

 private:
  std::vector<Port> ports_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<DLTensor> tensors_;
};

}  // namespace flexcomp::runner

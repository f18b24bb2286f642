// The inputs and outputs of a model.
#pragma once

#include <flexcomp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace flexcomp::runner {

using ShapesByName = std::map<std::string, std::vector<int64_t>>;
using Places = std::span<const flexcomp_tensor>;  // the memory of ports, in their order

struct Port {
  std::string name;
  std::vector<int64_t> shape;
  flexcomp_dtype dtype;
  size_t nbytes;
  std::vector<std::string> axes;  // names of the axes that are open; empty: none is
};

// Throws CallError.
std::vector<Port> PortsOf(flexcomp_session* session, flexcomp_kind kind, uint32_t shape);

// Ports with the extents that `given`, inputs by name, have along open axes of the same name.
std::vector<Port> Sized(std::vector<Port> ports, const std::vector<Port>& inputs, const ShapesByName& given);

size_t ElementNbytes(flexcomp_dtype dtype);
// Of the extents that a port has now.
size_t NbytesOf(const Port& port);

inline std::byte* DataOf(const flexcomp_tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

// Tensors of ports in memory of their own. The ports must outlive them.
class Tensors {
 public:
  explicit Tensors(const std::vector<Port>& ports);

  Places places() const noexcept { return tensors_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<flexcomp_tensor> tensors_;
};

}  // namespace flexcomp::runner

#include "ports.h"

#include <functional>
#include <numeric>
#include <utility>

#include "calls.h"

namespace flexcomp::runner {
namespace {

// Calls with each open axis of a port, and its name.
template <typename Function>
void ForNames(const Port& port, const Function& function) {
  for (size_t axis = 0; axis < port.axes.size(); ++axis)
    if (!port.axes[axis].empty()) function(axis, port.axes[axis]);
}

}  // namespace

size_t ElementNbytes(flexcomp_dtype dtype) {
  switch (dtype) {
    case FLEXCOMP_BOOL:
    case FLEXCOMP_INT8:
    case FLEXCOMP_UINT8: return 1;
    case FLEXCOMP_FLOAT16:
    case FLEXCOMP_BFLOAT16:
    case FLEXCOMP_INT16:
    case FLEXCOMP_UINT16: return 2;
    case FLEXCOMP_FLOAT32:
    case FLEXCOMP_INT32:
    case FLEXCOMP_UINT32: return 4;
    default: return 8;
  }
}

std::vector<Port> PortsOf(flexcomp_session* session, flexcomp_kind kind, uint32_t shape) {
  uint32_t count;
  Require(flexcomp_tensor_count(session, kind, &count));
  std::vector<Port> ports;
  for (uint32_t i = 0; i < count; ++i) {
    const auto info = Got<flexcomp_tensor_info>(flexcomp_describe_tensor, session, kind, i, shape);
    Port& port = ports.emplace_back(Port{info.name, {info.shape, info.shape + info.rank}, info.dtype, info.nbytes, {}});
    for (int32_t axis = 0; info.axis_names != nullptr && axis < info.rank; ++axis)
      port.axes.emplace_back(info.axis_names[axis] != nullptr ? info.axis_names[axis] : "");
  }
  return ports;
}

std::vector<Port> Sized(std::vector<Port> ports, const std::vector<Port>& inputs, const ShapesByName& given) {
  std::map<std::string, int64_t> extents;
  for (const Port& input : inputs)
    if (const auto found = given.find(input.name); found != given.end())
      ForNames(input, [&](size_t axis, const std::string& name) {
        if (axis < found->second.size()) extents.emplace(name, found->second[axis]);
      });
  for (Port& port : ports) {
    ForNames(port, [&](size_t axis, const std::string& name) {
      if (extents.contains(name)) port.shape[axis] = extents[name];
    });
    port.nbytes = NbytesOf(port);
  }
  return ports;
}

size_t NbytesOf(const Port& port) {
  return std::accumulate(port.shape.begin(), port.shape.end(), ElementNbytes(port.dtype), std::multiplies<>());
}

Tensors::Tensors(const std::vector<Port>& ports) {
  for (const Port& port : ports)
    tensors_.push_back({sizeof(flexcomp_tensor), memory_.emplace_back(port.nbytes).data(), port.nbytes, port.shape.data(),
                        static_cast<int32_t>(port.shape.size()), port.dtype});
}

}  // namespace flexcomp::runner

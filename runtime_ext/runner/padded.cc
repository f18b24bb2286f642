#include "padded.h"

#include <cstddef>
#include <optional>

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

std::optional<json::Object> RecordOf(const json::Object& info) {
  if (info.count(ffi::String("metadata")) == 0) return std::nullopt;
  const auto metadata = info["metadata"].cast<json::Object>();
  if (metadata.count(ffi::String("pad")) == 0) return std::nullopt;
  return json::Parse(metadata["pad"].cast<ffi::String>()).cast<json::Object>();
}

// Calls with each axis of a tensor that has a name, and the name.
template <typename Function>
void ForNames(const json::Object& tensors, const std::string& tensor, const Function& function) {
  if (tensors.count(ffi::String(tensor)) == 0) return;
  size_t axis = 0;
  for (const json::Value& name : tensors[ffi::String(tensor)].cast<json::Array>()) {
    if (name != nullptr) function(axis, std::string(name.cast<ffi::String>()));
    ++axis;
  }
}

}  // namespace

std::vector<Port> Sized(std::vector<Port> ports, const json::Object& info, const char* key, const ShapesByName& given) {
  const std::optional<json::Object> record = RecordOf(info);
  if (!record) return ports;
  std::map<std::string, int64_t> extents;
  for (const auto& [tensor, shape] : given)
    ForNames((*record)["inputs"].cast<json::Object>(), tensor, [&, &shape = shape](size_t axis, const std::string& name) {
      if (axis < shape.size()) extents.emplace(name, shape[axis]);
    });
  for (Port& port : ports) {
    ForNames((*record)[key].cast<json::Object>(), port.name, [&](size_t axis, const std::string& name) {
      if (axis < port.shape.size() && extents.contains(name)) port.shape[axis] = extents[name];
    });
    port.nbytes = NbytesOf(port);
  }
  return ports;
}

Tensors::Tensors(const std::vector<Port>& ports) : ports_(ports) {
  for (Port& port : ports_) {
    DLTensor tensor{};
    tensor.data = memory_.emplace_back(port.nbytes).data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(port.shape.size());
    tensor.dtype = port.dtype;
    tensor.shape = port.shape.data();
    tensors_.push_back(tensor);
  }
}

std::vector<ffi::AnyView> Tensors::views() {
  std::vector<ffi::AnyView> views;
  for (DLTensor& tensor : tensors_) views.emplace_back(&tensor);
  return views;
}

}  // namespace flexcomp::runner

#include "ports.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace flexcomp::runner {
namespace {

namespace json = tvm::ffi::json;

DLDataType ParseDtype(const std::string& name) {
  const std::pair<const char*, uint8_t> kinds[] = {
      {"uint", kDLUInt}, {"int", kDLInt}, {"bfloat", kDLBfloat}, {"float", kDLFloat}};
  if (name == "bool") return {kDLBool, 8, 1};
  for (const auto& [kind, code] : kinds)
    if (name.starts_with(kind)) return {code, static_cast<uint8_t>(std::atoi(name.c_str() + std::strlen(kind))), 1};
  throw std::runtime_error("the model has tensors of an unknown type: " + name);
}

}  // namespace

size_t NbytesOf(const Port& port) {
  const int64_t count = std::accumulate(port.shape.begin(), port.shape.end(), int64_t{1}, std::multiplies<>());
  return static_cast<size_t>(count) * (port.dtype.bits / 8);
}

std::vector<Port> ParsePorts(const json::Array& described) {
  std::vector<Port> ports;
  for (const tvm::ffi::Any& any : described) {
    const auto object = any.cast<json::Object>();
    Port& port = ports.emplace_back();
    port.name = object["name"].cast<std::string>();
    port.dtype = ParseDtype(object["dtype"].cast<std::string>());
    for (const tvm::ffi::Any& extent : object["shape"].cast<json::Array>()) port.shape.push_back(extent.cast<int64_t>());
    port.nbytes = NbytesOf(port);
  }
  return ports;
}

}  // namespace flexcomp::runner

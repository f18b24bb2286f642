#include "library.h"

#include <stdexcept>
#include <utility>

namespace flexcomp::runner {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

ffi::Function FunctionOf(const ffi::Module& module, const char* name) {
  auto function = module->GetFunction(name);
  if (!function.has_value())
    throw std::runtime_error(std::string("the library was built by another version of flexcomp, whose runtime has no \"") +
                             name + "\": build it again");
  return *std::move(function);
}

Library OpenLibrary(const std::string& path) {
  LoadedLibrary loaded = LoadLibrary(path);
  const auto summary = loaded.program->GetFunction("summary");  // libraries of earlier versions have none
  const ffi::Function info = summary.has_value() ? *summary : FunctionOf(loaded.program, "info");
  return {std::move(loaded), json::Parse(info().cast<ffi::String>()).cast<json::Object>()};
}

json::Object InShape(const json::Object& info, size_t shape) {
  json::Object said;
  for (const auto& [key, value] : info) said.Set(key, value);
  if (info.count(ffi::String("shapes")) == 0) return said;
  const auto own = info["shapes"].cast<json::Array>()[static_cast<int64_t>(shape)].cast<json::Object>();
  for (const char* key : {"inputs", "outputs"}) said.Set(key, own[key]);
  const auto least = info["min_budget_bytes"].cast<int64_t>();
  json::Array ladder;
  const auto rungs = own["ladder"].cast<json::Array>();
  for (const json::Value& rung : rungs)
    if (rung.cast<json::Object>()["budget_bytes"].cast<int64_t>() >= least) ladder.push_back(rung);
  if (ladder.empty()) ladder.push_back(rungs.back());
  said.Set("ladder", ladder);
  return said;
}

json::Object SessionOptions(const Arguments& arguments) {
  json::Object options;
  options.Set("affinity", !arguments.no_affinity);
  if (arguments.no_work_stealing) options.Set("help", false);
  options.Set("verify", arguments.verify);
  options.Set("direct", !arguments.no_direct);
  options.Set("read_bandwidth", arguments.read_bandwidth);
  return options;
}

}  // namespace flexcomp::runner

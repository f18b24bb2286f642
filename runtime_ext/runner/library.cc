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

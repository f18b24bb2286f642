#include "library.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "library_check.h"

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

// The library's full name: dlopen searches its path for names without a slash.
std::string PathOf(const std::string& library) {
  const std::unique_ptr<char, decltype(&std::free)> path(::realpath(library.c_str(), nullptr), &std::free);
  if (!path) throw std::runtime_error("cannot open " + library + ": " + std::strerror(errno));
  // The ending names the loader.
  if (!std::string_view(path.get()).ends_with(".so")) throw std::runtime_error(library + " is not a shared library: its name does not end in .so");
  return path.get();
}

// The program in a library. Errors get the file's name here: neither the dynamic loader nor the reader names the file.
ffi::Module Load(const std::string& library) {
  CheckLibrary(library);
  try {
    return ffi::Module::LoadFromFile(library);
  } catch (const ffi::Error& error) {
    throw std::runtime_error("cannot load " + library + ": " + std::string(error.message()));
  }
}

}  // namespace

ffi::Function FunctionOf(const ffi::Module& module, const char* name) {
  auto function = module->GetFunction(name);
  if (!function.has_value())
    throw std::runtime_error(std::string("the library was built by another version of flexcomp, whose runtime has no \"") +
                             name + "\": build it again");
  return *std::move(function);
}

Library OpenLibrary(const std::string& given) {
  const std::string path = PathOf(given);
  const ffi::Module program = Load(path);
  if (!std::string_view(program->kind()).starts_with("flexcomp.program."))
    throw std::runtime_error(given + " is not a compiled network");
  const auto summary = program->GetFunction("summary");  // libraries of earlier versions have none
  const ffi::Function info = summary.has_value() ? *summary : FunctionOf(program, "info");
  return {path, path.substr(0, path.size() - 3) + ".weights", program, json::Parse(info().cast<ffi::String>()).cast<json::Object>()};
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

#include "library/load.h"

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "library/check_elf.h"

namespace flexcomp {
namespace {

// The library's full name: dlopen searches its path for names without a slash.
std::string FullName(const std::string& given) {
  const std::unique_ptr<char, decltype(&std::free)> path(::realpath(given.c_str(), nullptr), &std::free);
  if (!path) RaiseError("ArtifactError", "cannot open ", given, ": ", ErrnoText(errno));
  // The ending names the loader.
  if (!std::string_view(path.get()).ends_with(".so"))
    RaiseError("ArtifactError", given, " is not a shared library: its name does not end in .so");
  return path.get();
}

// Errors get the file's name here: neither the dynamic loader nor the reader names the file.
tvm::ffi::Module LoadChecked(const std::string& path) {
  CheckElf(path);
  try {
    return tvm::ffi::Module::LoadFromFile(path);
  } catch (const tvm::ffi::Error& error) {
    RaiseError("ArtifactError", "cannot load ", path, ": ", error.what());
  }
}

}  // namespace

LoadedLibrary LoadLibrary(const std::string& given) {
  const std::string path = FullName(given);
  const tvm::ffi::Module program = LoadChecked(path);
  if (!std::string_view(program->kind()).starts_with("flexcomp.program.")) RaiseError("ArtifactError", given, " is not a compiled network");
  return {path, path.substr(0, path.size() - 3) + ".weights", program};
}

}  // namespace flexcomp

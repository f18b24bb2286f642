// Exported libraries, through the interface that those of all versions have.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <string>

namespace flexcomp {

struct LoadedLibrary {
  std::string path, weights;  // full names; weights: where the library looks unless told otherwise
  tvm::ffi::Module program;   // its kind names the version of the format
};

// Throws ArtifactError, which names the file.
LoadedLibrary LoadLibrary(const std::string& path);

}  // namespace flexcomp

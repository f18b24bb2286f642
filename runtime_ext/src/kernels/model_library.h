// The loaded shared library that holds a model's kernels.
#pragma once

#include <string>

#include "program/program.h"

namespace flexcomp {

class ModelLibrary {
 public:
  // Finds the library that holds the kernel of `marker`: `path` if given, else any object loaded into the process.
  // Symbols carry a prefix of their model's own, so whichever copy is found holds the right code.
  // Throws ArtifactError.
  ModelLibrary(const Layer& marker, const std::string& path);
  ~ModelLibrary();
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  // nullptr if absent.
  void* FindKernel(const Layer& layer) const;
  void* FindPreparation(const Layer& layer) const;
  void* Find(const std::string& symbol) const noexcept;

 private:
  void* handle_ = nullptr;
};

}  // namespace flexcomp

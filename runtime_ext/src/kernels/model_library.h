// Where a model's kernels are: in a loaded shared library, or in the program itself.
#pragma once

#include <string>

#include "kernels/linked_network.h"
#include "program/program.h"

namespace flexcomp {

class ModelLibrary {
 public:
  // Finds the library that holds the kernel of `marker`: `path` if given, else any object loaded into the process.
  // Symbols carry a prefix of their model's own, so whichever copy is found holds the right code.
  // Throws ArtifactError.
  ModelLibrary(const Layer& marker, const std::string& path);
  // The kernels of a network that is linked with the program, and outlives this.
  explicit ModelLibrary(const flexcomp_network& linked) noexcept : linked_(&linked) {}
  ~ModelLibrary();
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  // nullptr if absent.
  void* FindKernel(const Layer& layer) const;
  void* FindPreparation(const Layer& layer) const;
  void* Find(const std::string& symbol) const noexcept;

 private:
  void* handle_ = nullptr;
  const flexcomp_network* linked_ = nullptr;
};

}  // namespace flexcomp

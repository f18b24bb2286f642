// The loaded shared library that holds a model's kernels.
#pragma once

#include <string>

namespace flexcomp {

class ModelLibrary {
 public:
  // Finds the library that exports `marker`: `path` if given, else any object loaded into the process.
  // Symbols carry a prefix of their model's own, so whichever copy is found holds the right code.
  // Throws ArtifactError.
  ModelLibrary(const std::string& marker, const std::string& path);
  ~ModelLibrary();
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  void* Find(const std::string& symbol) const noexcept;  // nullptr if absent

 private:
  void* handle_ = nullptr;
};

}  // namespace flexcomp

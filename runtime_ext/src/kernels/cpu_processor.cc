#include "kernels/cpu_processor.h"

#include <atomic>

#include "base/error.h"
#include "memory/host_memory.h"
#include "threads/backend.h"

namespace flexcomp {

CpuProcessor::CpuProcessor(const Layer& marker, const std::string& library_path, const flexcomp_network* linked, int threads,
                           const CpuSet& cpus)
    : library_(linked != nullptr ? ModelLibrary(*linked) : ModelLibrary(marker, library_path)),
      cpus_(cpus),
      pool_(threads, cpus) {
  // Whichever library's runtime serves this one, its kernels shall find the contexts that are set here. All sessions
  // store the same values.
  for (const auto& [name, function] : BackendPointers()) {
    void* pointer = library_.Find(name);
    if (pointer == nullptr)
      RaiseError("ArtifactError", "the library was built by another version of flexcomp, without ", name, ": build it again");
    std::atomic_ref(*static_cast<void**>(pointer)).store(function);
  }
}

Kernel CpuProcessor::Find(const Layer& layer) {
  void* function = library_.FindKernel(layer);
  if (function == nullptr)
    RaiseError("ArtifactError", "the library has no kernel ", layer.kernel, " that takes what layer ", layer.name, " gives it");
  return function;
}

Kernel CpuProcessor::FindPreparation(const Layer& layer) {
  void* function = library_.FindPreparation(layer);
  if (function == nullptr)
    RaiseError("ArtifactError", "the library has no kernel ", layer.weights->preparation->kernel, " that prepares the weights of layer ",
               layer.name);
  return function;
}

std::unique_ptr<SessionMemory> CpuProcessor::MakeMemory(uint64_t nbytes) { return std::make_unique<HostMemory>(nbytes); }

void CpuProcessor::Enter() {
  scope_.emplace(pool_);
  affinity_.emplace(cpus_);
}

void CpuProcessor::Leave() noexcept {
  affinity_.reset();
  scope_.reset();
}

}  // namespace flexcomp

#include "cpu_processor.h"

#include <tvm/ffi/extra/module.h>

#include <atomic>

#include "error.h"
#include "workspace.h"

namespace flexcomp {
namespace {

std::string SymbolOf(const std::string& kernel) { return tvm::ffi::symbol::tvm_ffi_symbol_prefix + kernel; }

}  // namespace

CpuProcessor::CpuProcessor(const std::string& marker, const std::string& library_path, int threads,
                           const CpuSet& cpus)
    : library_(SymbolOf(marker), library_path),
      cpus_(cpus),
      pool_(threads, cpus) {
  // The library calls its backend through pointers that it exports; one that is absent is not used.
  const auto hook = [this](const char* pointer, void* function) {
    if (void* at = library_.Find(pointer)) hooks_.emplace_back(static_cast<void**>(at), function);
  };
  hook("__TVMBackendParallelLaunch", reinterpret_cast<void*>(&ParallelLaunch));
  hook("__TVMBackendAllocWorkspace", reinterpret_cast<void*>(&AllocWorkspace));
  hook("__TVMBackendFreeWorkspace", reinterpret_cast<void*>(&FreeWorkspace));
  InstallHooks();
}

// Sessions of the same model store the same values, so a race between them is harmless.
void CpuProcessor::InstallHooks() noexcept {
  for (const auto& [at, function] : hooks_) std::atomic_ref(*at).store(function);
}

Kernel CpuProcessor::Find(const std::string& kernel) {
  void* function = library_.Find(SymbolOf(kernel));
  if (function == nullptr) RaiseError("ArtifactError", "the library lacks the kernel ", kernel);
  return reinterpret_cast<Kernel>(function);
}

void CpuProcessor::Enter() {
  // Where TVM is loaded too, whoever opens the library once more gets TVM's backend into it.
  InstallHooks();
  ResetWorkspace();
  affinity_.emplace(cpus_);
  scope_.emplace(&pool_);
}

void CpuProcessor::Leave() noexcept {
  scope_.reset();
  affinity_.reset();
}

}  // namespace flexcomp

#include "kernels/model_library.h"

#include <dlfcn.h>
#include <link.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "program/signature.h"

namespace flexcomp {
namespace {

// Kernels may run, and errors may refer to code, after every handle is gone: the library stays.
constexpr int kFlags = RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE;

// Collected first, opened later: the iteration holds the dynamic linker's lock.
std::vector<std::string> LoadedObjects() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name ? info->dlpi_name : "");
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace

ModelLibrary::ModelLibrary(const Layer& marker, const std::string& path) {
  const auto candidates = path.empty() ? LoadedObjects() : std::vector{path};
  for (const std::string& candidate : candidates) {
    // The main program has no name; a model linked into the program is found all the same.
    handle_ = ::dlopen(candidate.empty() ? nullptr : candidate.c_str(), kFlags);
    if (handle_ == nullptr) continue;
    if (FindKernel(marker) != nullptr) return;
    ::dlclose(handle_);
    handle_ = nullptr;
  }
  RaiseError("ArtifactError", "no loaded library holds a kernel ", marker.kernel, " that takes what layer ", marker.name,
             " gives it", path.empty() ? "" : ": looked into ", path);
}

ModelLibrary::~ModelLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* ModelLibrary::FindKernel(const Layer& layer) const {
  return Find(tvm::ffi::symbol::tvm_ffi_symbol_prefix + SymbolOf(layer));
}

void* ModelLibrary::FindPreparation(const Layer& layer) const {
  return Find(tvm::ffi::symbol::tvm_ffi_symbol_prefix + PreparationSymbolOf(layer));
}

void* ModelLibrary::Find(const std::string& symbol) const noexcept {
  if (linked_ != nullptr) {
    const std::span symbols(linked_->symbols, linked_->symbol_count);
    const auto found = std::ranges::lower_bound(symbols, std::string_view(symbol), {}, &flexcomp_symbol::name);
    return found != symbols.end() && found->name == symbol ? found->address : nullptr;
  }
  // The linker would take the text before a zero for the whole.
  return symbol.find('\0') == std::string::npos ? ::dlsym(handle_, symbol.c_str()) : nullptr;
}

}  // namespace flexcomp

#include "cuda/driver.h"

#include <dlfcn.h>

#include "base/error.h"

namespace flexcomp::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
// The first with all calls: graphs are instantiated with flags since 11.4.
constexpr int kOldestVersion = 11040;

std::string VersionText(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace

Driver::Driver() : library_(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* reason = ::dlerror();
    RaiseError("TargetError", "the library was built for a GPU, and there is no CUDA driver here: ", reason ? reason : kLibrary);
  }
  try {
    Find();
  } catch (...) {
    ::dlclose(library_);
    throw;
  }
}

void Driver::Find() {
  const auto find = [&](const char* symbol) { return ::dlsym(library_, symbol); };
  int version = 0;
  DriverGetVersion = reinterpret_cast<decltype(DriverGetVersion)>(find("cuDriverGetVersion"));
  if (DriverGetVersion == nullptr || DriverGetVersion(&version) != kSuccess) version = 0;
  if (version < kOldestVersion)
    RaiseError("TargetError", "the CUDA driver here is for CUDA ", VersionText(version), ", and ", VersionText(kOldestVersion),
               " or later is needed");
  const auto require = [&](const char* symbol) {
    void* found = find(symbol);
    if (found == nullptr) RaiseError("TargetError", "the CUDA driver here, for CUDA ", VersionText(version), ", has no ", symbol);
    return found;
  };
#define FLEXCOMP_CUDA_FIND(name, symbol, parameters) name = reinterpret_cast<decltype(name)>(require(#symbol));
  FLEXCOMP_CUDA_CALLS(FLEXCOMP_CUDA_FIND)
#undef FLEXCOMP_CUDA_FIND
  if (const Result result = Init(0); result == kNoDevice)
    Raise("TargetError", "the library was built for a GPU, and the CUDA driver finds none");
  else if (result != kSuccess)
    RaiseError("TargetError", "the CUDA driver does not start: ", Describe(result));
}

Driver::~Driver() { ::dlclose(library_); }

std::string Driver::Describe(Result result) const {
  const char *name = nullptr, *text = nullptr;
  if (GetErrorName(result, &name) != kSuccess || name == nullptr) return "error " + std::to_string(result);
  if (GetErrorString(result, &text) != kSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

}  // namespace flexcomp::cuda

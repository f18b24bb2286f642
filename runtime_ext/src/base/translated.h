// Modules that throw nothing but errors of ours, and functions that are defined once in a process.
#pragma once

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <new>
#include <optional>
#include <system_error>

#include "base/error.h"

namespace flexcomp {

inline tvm::ffi::Error OutOfMemory() {
  return {"ExecutionError", "the process is out of memory: beside the budget it needs some for itself", ""};
}

// For when there is no memory even for the error: made while there is.
inline const tvm::ffi::Error& KeptOutOfMemory() {
  static const tvm::ffi::Error error = OutOfMemory();
  return error;
}

[[noreturn]] inline void ThrowOutOfMemory() {
  try {
    throw OutOfMemory();
  } catch (const std::bad_alloc&) {
    throw KeptOutOfMemory();
  }
}

// Calls `function`; the system's errors become errors of ours.
template <typename Function>
auto Translated(const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    ThrowOutOfMemory();
  } catch (const std::system_error& error) {
    RaiseError("ExecutionError", "the system refuses a thread: ", error.code().message());
  }
}

// The error of ours that `function` ends with, or that there is no memory to say which.
template <typename Function>
std::optional<tvm::ffi::Error> Caught(const Function& function) noexcept {
  try {
    try {
      Translated(function);
    } catch (const tvm::ffi::Error& error) {
      return error;
    } catch (const std::exception& error) {
      return tvm::ffi::Error("ExecutionError", error.what(), "");
    }
  } catch (...) {
    return KeptOutOfMemory();
  }
  return std::nullopt;
}

// A module that throws nothing but errors of ours, whichever way a function is called.
class TranslatedModule : public tvm::ffi::ModuleObj {
 public:
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final {
    return Translated([&]() -> tvm::ffi::Optional<tvm::ffi::Function> {
      const tvm::ffi::Optional<tvm::ffi::Function> found = Find(name);
      if (!found.has_value()) return std::nullopt;
      return tvm::ffi::Function::FromPacked([function = *found](tvm::ffi::PackedArgs args, tvm::ffi::Any* result) {
        Translated([&] { function.CallPacked(args, result); });
      });
    });
  }

 private:
  virtual tvm::ffi::Optional<tvm::ffi::Function> Find(const tvm::ffi::String& name) = 0;
};

// Every model brings a copy of this code; the first one serves all of the same version.
template <typename Function>
void DefineOnce(const char* name, Function function) {
  if (!tvm::ffi::Function::GetGlobal(name).has_value()) tvm::ffi::reflection::GlobalDef().def(name, function);
}

}  // namespace flexcomp

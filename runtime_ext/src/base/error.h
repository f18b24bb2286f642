// Errors that reach the user. The kind names a class of flexcomp/errors.py; flexcomp/runtime/session.py translates.
#pragma once

#include <tvm/ffi/error.h>

#include <cstring>
#include <sstream>
#include <string>

namespace flexcomp {

[[noreturn]] inline void Raise(const char* kind, const std::string& message) {
  throw tvm::ffi::Error(kind, message, "");
}

// RaiseError("BudgetError", "asked for ", 3, " bytes")
template <typename... Parts>
[[noreturn]] void RaiseError(const char* kind, const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  Raise(kind, out.str());
}

inline std::string ErrnoText(int number) { return std::strerror(number); }

}  // namespace flexcomp

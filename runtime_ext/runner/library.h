// Exported libraries, and what these say of themselves.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>

#include "arguments.h"
#include "library/load.h"

namespace flexcomp::runner {

struct Library : LoadedLibrary {
  tvm::ffi::json::Object info;  // the library's description of itself
};

// Throws tvm::ffi::Error, which names the file, and std::runtime_error.
Library OpenLibrary(const std::string& path);

// Throws std::runtime_error where the library is too old or too new.
tvm::ffi::Function FunctionOf(const tvm::ffi::Module& module, const char* name);

// What the library says of itself in one of its shapes: "inputs", "outputs" and "ladder" are those of this shape, with the budgets that
// are enough for all.
tvm::ffi::json::Object InShape(const tvm::ffi::json::Object& info, size_t shape);

// The options of sessions that several sessions may have in common.
tvm::ffi::json::Object SessionOptions(const Arguments& arguments);

}  // namespace flexcomp::runner

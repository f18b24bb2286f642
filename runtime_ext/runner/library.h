// Exported libraries, through the interface that all of them have.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>

#include "arguments.h"

namespace flexcomp::runner {

struct Library {
  std::string path, weights;  // weights: where the library looks unless told otherwise
  tvm::ffi::Module program;
  tvm::ffi::json::Object info;  // the library's description of itself
};

// Throws std::runtime_error, which names the file.
Library OpenLibrary(const std::string& path);

// Throws std::runtime_error where the library is too old or too new.
tvm::ffi::Function FunctionOf(const tvm::ffi::Module& module, const char* name);

// The options of sessions that several sessions may have in common.
tvm::ffi::json::Object SessionOptions(const Arguments& arguments);

}  // namespace flexcomp::runner

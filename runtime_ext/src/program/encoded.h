// A decoded program with the bytes that its plans are decoded from.
#pragma once

#include <tvm/ffi/string.h>

#include <memory>
#include <string_view>
#include <utility>

#include "program/program.h"

// The format version is part of the kind: models of different versions may meet in one process.
#define FLEXCOMP_PROGRAM_KIND "flexcomp.program.10"

namespace flexcomp {

// Throws as ReadProgram does.
inline std::shared_ptr<const Program> DecodeProgram(tvm::ffi::Bytes blob) {
  struct Encoded {
    explicit Encoded(tvm::ffi::Bytes bytes)
        : blob(std::move(bytes)), program(ReadProgram(std::string_view(blob.data(), blob.size()))) {}

    const tvm::ffi::Bytes blob;
    const Program program;
  };
  const auto encoded = std::make_shared<const Encoded>(std::move(blob));
  return {encoded, &encoded->program};
}

}  // namespace flexcomp

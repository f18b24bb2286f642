// Decoded programs with the bytes that their plans are decoded from.
#pragma once

#include <tvm/ffi/string.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "program/format.h"
#include "program/program.h"
#include "program/shapes.h"

namespace flexcomp {

// The shapes that a library holds. Throws as ReadProgram does.
inline Shapes DecodeShapes(tvm::ffi::Bytes blob) {
  struct Encoded {
    explicit Encoded(tvm::ffi::Bytes bytes) : blob(std::move(bytes)) {
      const std::vector<std::string_view> parts = SplitShapes({blob.data(), blob.size()});
      programs.reserve(parts.size());
      for (const std::string_view part : parts) programs.push_back(ReadProgram(part));
    }

    const tvm::ffi::Bytes blob;
    std::vector<Program> programs;
  };
  const auto encoded = std::make_shared<const Encoded>(std::move(blob));
  std::vector<std::shared_ptr<const Program>> programs;
  for (const Program& program : encoded->programs) programs.emplace_back(encoded, &program);
  return Shapes(std::move(programs));
}

}  // namespace flexcomp

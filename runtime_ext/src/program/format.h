// Versions of the program's format (flexcomp/program/program_bytes.py). The weights file has none of its own: a program names the
// checksum of the file's header.
#pragma once

#include <cstdint>
#include <string_view>

// The version is part of a module's kind: models of different versions may meet in one process, each with its own runtime.
#define FLEXCOMP_PROGRAM_KIND "flexcomp.program.11"

namespace flexcomp {

// This runtime reads the formats from the oldest to its own.
constexpr uint32_t kOldestFormat = 10, kFormat = 11;

// The number at the end of a program's kind; none: 0.
constexpr uint32_t FormatOf(std::string_view kind) {
  const size_t digits = kind.find_last_not_of("0123456789") + 1;
  uint32_t number = 0;
  for (const char digit : kind.substr(digits).substr(0, 9)) number = 10 * number + static_cast<uint32_t>(digit - '0');
  return number;
}

static_assert(FormatOf(FLEXCOMP_PROGRAM_KIND) == kFormat);

}  // namespace flexcomp

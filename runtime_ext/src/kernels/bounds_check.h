// Whether the integers of a tensor lie within the bounds that its kernel was made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "program/program.h"

namespace flexcomp {

struct BoundsCheck {
  const std::byte* data;
  uint64_t count;  // elements; a multiple of the number of bounds
  bool wide;       // int64; otherwise int32
  std::span<const Bound> bounds;
};

// Empty if all lie inside; otherwise an error message on the first that does not.
std::string FindOutside(const BoundsCheck& check);

}  // namespace flexcomp

// Copies between a tensor of a shape and its part, the first elements along each axis.
#pragma once

#include <cstddef>
#include <span>

#include "program/program.h"

namespace flexcomp {

// Writes a whole tensor: `part`, and `value`, an element, everywhere else.
void CopyPadded(std::byte* place, const TensorType& whole, const std::byte* from, const TensorType& part, std::span<const std::byte> value) noexcept;
// Reads a part.
void CopyCut(std::byte* to, const TensorType& part, const std::byte* place, const TensorType& whole) noexcept;

}  // namespace flexcomp

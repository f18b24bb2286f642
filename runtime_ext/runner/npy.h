// NumPy's .npy files: contiguous little-endian arrays in C order.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flexcomp::runner {

// Fills `data` from the file, whose array must have exactly this type and shape.
// Throws std::runtime_error.
void ReadNpy(const std::string& path, DLDataType dtype, const std::vector<int64_t>& shape, std::byte* data,
             size_t nbytes);

void WriteNpy(const std::string& path, DLDataType dtype, const std::vector<int64_t>& shape, const std::byte* data,
              size_t nbytes);

}  // namespace flexcomp::runner

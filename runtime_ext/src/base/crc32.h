// CRC-32 as in zlib.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

// Continues `crc` (0 at the start) over `nbytes` more bytes.
uint32_t Crc32(uint32_t crc, const void* data, size_t nbytes);

}  // namespace flexcomp

// 16-bit floats, as far as the runner looks into them: random inputs, and outputs that are compared.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace flexcomp::runner {

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Bfloat16 {
  uint16_t bits;
  Bfloat16() = default;
  explicit Bfloat16(double value) : bits(static_cast<uint16_t>(BitsOf(static_cast<float>(value)) >> 16)) {}
  explicit operator float() const { return FloatOf(uint32_t{bits} << 16); }
};

struct Float16 {
  uint16_t bits;
  Float16() = default;
  // Towards zero, below 65536; a number below the normal ones becomes zero.
  explicit Float16(double given) {
    const uint32_t value = BitsOf(static_cast<float>(given)), size = value & 0x7fffffff;
    bits = static_cast<uint16_t>((value >> 16 & 0x8000) | (size < 113u << 23 ? 0 : (size - (112u << 23)) >> 13));
  }
  explicit operator float() const {
    const uint32_t size = bits & 0x7fff;
    const float magnitude = size >= 0x7c00 ? (size > 0x7c00 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
                            : size < 0x400 ? static_cast<float>(size) * 0x1p-24f
                                           : FloatOf((size << 13) + (112u << 23));
    return bits & 0x8000 ? -magnitude : magnitude;
  }
};

}  // namespace flexcomp::runner

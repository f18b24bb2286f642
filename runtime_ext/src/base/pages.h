// Units of addresses and sizes.
#pragma once

#include <cstdint>

namespace flexcomp {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kAlign = 64;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace flexcomp

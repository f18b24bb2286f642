// Where the addresses of an arena are in memory. Its two ranges, of the working bytes of inferences and for bytes that
// stay, may lie apart: nothing lies across the border (program/check.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

class Places {
 public:
  Places() = default;
  // One after the other, wherever the border is.
  explicit Places(std::byte* arena) noexcept : working_(arena), kept_(arena) {}
  // Addresses below `border` lie from `working` on, the others from `kept` on.
  Places(std::byte* working, std::byte* kept, uint64_t border) noexcept : working_(working), kept_(kept), border_(border) {}

  std::byte* At(uint64_t address) const noexcept {
    return address < border_ ? working_ + address : kept_ + (address - border_);
  }

 private:
  std::byte* working_ = nullptr;
  std::byte* kept_ = nullptr;
  uint64_t border_ = 0;
};

}  // namespace flexcomp

// Where the addresses of an arena are in memory. Its two ranges, of the working bytes of inferences and for bytes that
// stay, may lie apart: nothing lies across the border (program/check.cc). Parts of the range that stays may lie elsewhere, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace flexcomp {

// Addresses from `begin` on, up to the next piece.
struct Piece {
  uint64_t begin;
  std::byte* elsewhere;  // nullptr: in the kept range
  uint64_t offset;       // of the first byte there
};

class Places {
 public:
  Places() = default;
  // One after the other, wherever the border is.
  explicit Places(std::byte* arena) noexcept : working_(arena), kept_(arena) {}
  // Addresses below `border` lie from `working` on, the others from `kept` on, or as `pieces` say, which begin at the border and
  // outlive the places.
  Places(std::byte* working, std::byte* kept, uint64_t border, std::span<const Piece> pieces = {}) noexcept
      : working_(working), kept_(kept), border_(border), pieces_(pieces) {}

  std::byte* At(uint64_t address) const noexcept {
    if (address < border_) return working_ + address;
    if (pieces_.empty()) return kept_ + (address - border_);
    const Piece& piece = *std::prev(std::ranges::upper_bound(pieces_, address, {}, &Piece::begin));
    return (piece.elsewhere != nullptr ? piece.elsewhere : kept_) + piece.offset + (address - piece.begin);
  }

 private:
  std::byte* working_ = nullptr;
  std::byte* kept_ = nullptr;
  uint64_t border_ = 0;
  std::span<const Piece> pieces_;
};

}  // namespace flexcomp

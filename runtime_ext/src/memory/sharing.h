// Weights of a session that lie outside of its arena, where other sessions read them, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/places.h"
#include "program/shareable.h"
#include "program/tapes.h"

namespace flexcomp {

// Of one rung.
class Sharing {
 public:
  struct Place {
    uint64_t shareable;
    std::byte* at;  // all its bytes
  };

  Sharing() = default;  // nothing is shared
  // Throws InputError if one of these does not stay in the arena whole.
  Sharing(const Rung& rung, const Program& program, const Shareables& shareables, std::vector<Place> places);

  bool empty() const noexcept { return places_.empty(); }
  std::byte* PlaceOf(uint64_t shareable) const noexcept;  // nullptr: not shared
  uint64_t freed() const noexcept { return freed_; }      // bytes that the kept range is smaller
  std::span<const Piece> pieces() const noexcept { return pieces_; }
  Omitted omitted() const noexcept { return {loads_, layers_}; }
  // Of an address that is not shared, in the smaller kept range of a rung with this border.
  uint64_t KeptOffset(uint64_t address, uint64_t border) const noexcept;

 private:
  std::vector<Place> places_;
  std::vector<FileRange> gone_;  // pages of the arena, ascending
  uint64_t freed_ = 0;
  std::vector<Piece> pieces_;
  std::vector<uint8_t> loads_, layers_;
};

}  // namespace flexcomp

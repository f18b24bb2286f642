// Memory whose pages do not exist yet.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

// Makes the pages of a range exist, huge ones where the mapping has them; contents are lost. A direct read into memory that
// was never touched pays for its pages on the way and runs at a fifth of the disk's speed.
void TouchPages(std::byte* data, uint64_t nbytes) noexcept;

// A mapping, whose pages whoever has nothing better to do makes exist: zeroing them is most of a first inference where
// storage is fast.
class FreshPages {
 public:
  FreshPages() = default;
  FreshPages(std::byte* base, uint64_t nbytes) noexcept : base_(base), nbytes_(nbytes) {}

  // A few more of them, in some tenths of a millisecond; contents stay. One thread does that. False: all exist, or the
  // system cannot.
  bool PopulateSome() noexcept;

 private:
  std::byte* base_ = nullptr;
  uint64_t nbytes_ = 0, populated_ = 0;
};

}  // namespace flexcomp

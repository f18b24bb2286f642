// Memory of this process that a device copies from by itself: reads end here, and weights go on from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.h"

namespace flexcomp::cuda {

// As long as the loader's reads in flight, and as much again for copies in flight. flexcomp/program/device_kernel.py
// has the same number.
inline constexpr uint64_t kPinnedNbytes = 4 << 20;

class PinnedRing {
 public:
  // Throws ExecutionError.
  explicit PinnedRing(Device& device);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Room for a read; reads in progress have at most half of the ring. Waits for copies out of that room. nullptr:
  // refused.
  std::byte* Begin(std::byte* place, uint64_t nbytes, Refusal* refusal) noexcept;
  // The first read begun, now complete, goes to its place by the copy stream.
  Refusal Copy() noexcept;
  // The first read begun is not wanted.
  void Drop() noexcept;

 private:
  // Pieces of the ring, oldest first: copied or dropped ones, then those being read.
  struct Piece {
    uint64_t begin = 0, nbytes = 0;
    std::byte* place = nullptr;
    bool copied = false;  // its event says when
    Event event = nullptr;
  };
  static constexpr uint32_t kPieces = 32;

  Piece& At(uint32_t index) noexcept { return pieces_[(first_ + index) % kPieces]; }
  // A place with room for that many bytes now; kPinnedNbytes: nowhere.
  uint64_t Room(uint64_t nbytes) noexcept;
  void Release() noexcept;

  Device& device_;
  std::byte* data_;
  bool registered_ = false;
  Piece pieces_[kPieces];
  uint32_t first_ = 0, count_ = 0, reading_ = 0;
};

}  // namespace flexcomp::cuda

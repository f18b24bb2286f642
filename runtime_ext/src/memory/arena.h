// The one block of memory that holds everything of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace flexcomp {

// Bytes of an arena that keep their contents, and where they lie afterwards.
struct Carried {
  uint64_t from = 0, to = 0, nbytes = 0;
};

class Arena {
 public:
  Arena() = default;
  // Maps `nbytes`, rounded up to whole pages of the system, of untouched memory. Forked processes do not inherit it.
  // Throws BudgetError.
  explicit Arena(uint64_t nbytes);
  Arena(Arena&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  ~Arena();

  std::byte* base() const noexcept { return base_; }
  uint64_t nbytes() const noexcept { return nbytes_; }

  // Bytes of the arena that are in memory. Throws ExecutionError.
  uint64_t Resident() const;

  // Gives the memory back to the system, except the bytes at `from` of `kept`, which ascend, and keeps the addresses: other contents
  // count for nothing from now on. Direct reads that are running hold their own pages until they end. False: the system
  // refused; the contents may be gone all the same.
  bool Discard(std::span<const Carried> kept) noexcept;

  // Zeros; whole pages are given back.
  static void Clear(std::byte* place, uint64_t nbytes) noexcept;

  // Nobody reads into the arena meanwhile, as in all functions below. `sparse`: gives pages that bytes have left back at once.
  void Move(std::span<const Carried> moves, bool sparse) noexcept;
  // Gives the memory and the addresses after `nbytes` back; memory that the system refuses is kept.
  void Shrink(uint64_t nbytes) noexcept;
  // Makes room for `nbytes`, perhaps at other addresses; old and new size need not both find room. False: there is no room, nothing
  // has changed.
  bool Grow(uint64_t nbytes) noexcept;
  // Takes bytes out of another arena, and their memory, piece by piece: both together never hold much more.
  void TakeFrom(Arena& other, std::span<const Carried> moves) noexcept;

 private:
  void DiscardWhole(uint64_t low, uint64_t high) noexcept;  // pages between
  void MoveSparse(const Carried& one) noexcept;
  // Shrinks, with small pages before the edge: of a huge page that is unmapped in part, nothing would go back. False: there is no
  // room to do so.
  bool SplitEdge(uint64_t nbytes) noexcept;

  std::byte* base_ = nullptr;
  uint64_t nbytes_ = 0;  // that are mapped
};

}  // namespace flexcomp

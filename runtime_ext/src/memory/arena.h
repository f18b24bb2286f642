// The one block of memory that holds everything of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace flexcomp {

// Bytes of an arena that keep their contents while all others go, and where they lie afterwards; addresses and size in
// kPages.
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

  // Gives the memory back to the system, except the `nbytes` from `at` on, and keeps the addresses: the contents count
  // for nothing from now on. Direct reads that are running hold their own pages until they end. False: the system
  // refused; the contents may be gone all the same.
  bool Discard(uint64_t at, uint64_t nbytes) noexcept;

  // Gives all memory back except the carried bytes, and the addresses after `nbytes`; memory that the system refuses is
  // kept. Nobody reads into the arena.
  void Shrink(uint64_t nbytes, const Carried& carried) noexcept;
  // Makes room for `nbytes`, perhaps at other addresses, and gives all memory back except the carried bytes; old and
  // new size need not both find room. Nobody reads into the arena. False: there is no room, nothing has changed.
  bool Grow(uint64_t nbytes, const Carried& carried) noexcept;
  // Takes the carried bytes out of another arena, and all memory of that arena, piece by piece: both together never
  // hold much more.
  void TakeFrom(Arena& other, const Carried& carried) noexcept;

 private:
  void Keep(const Carried& carried) noexcept;  // moves them within the arena, and gives all other memory back

  std::byte* base_ = nullptr;
  uint64_t nbytes_ = 0;  // that are mapped
};

}  // namespace flexcomp

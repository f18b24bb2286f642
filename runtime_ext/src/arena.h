// The one block of memory that holds everything of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace flexcomp {

class Arena {
 public:
  Arena() = default;
  // Maps `nbytes`, a multiple of kPage, of untouched memory. Throws BudgetError.
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

  // Gives the memory back to the system and keeps the addresses: what is there counts for nothing from now on. Direct
  // reads that are running hold their own pages until they end. False: the system refused, nothing has changed.
  bool Discard() noexcept;

 private:
  std::byte* base_ = nullptr;
  uint64_t nbytes_ = 0;
};

}  // namespace flexcomp

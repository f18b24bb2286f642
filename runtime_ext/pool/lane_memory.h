// The memory that the models of a lane work in, one after the other: none finds anything of another's; and that of weights which
// several models read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

// Addresses that stay, and memory that is mapped and given back there.
class LaneMemory {
 public:
  // Reserves as many addresses as this machine has memory, or for so many bytes. Throws BudgetError.
  LaneMemory();
  explicit LaneMemory(uint64_t most);
  ~LaneMemory();
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;

  std::byte* base() const noexcept { return base_; }
  uint64_t reserved() const noexcept { return reserved_; }  // bytes, the largest usable size
  uint64_t nbytes() const noexcept { return nbytes_; }      // that may be used: whole pages of the system

  // From now on these bytes, whole pages of the system, may be used, or may not and go back, whatever else is used. Throws BudgetError.
  void Open(uint64_t at, uint64_t nbytes);
  void Shut(uint64_t at, uint64_t nbytes) noexcept;

  // From now on `nbytes` may be used, unless there are more. Throws BudgetError if the system refuses more.
  void Grow(uint64_t nbytes);
  // From now on `nbytes` may be used, unless there are fewer; nobody uses any now. The memory after them goes back.
  void Shrink(uint64_t nbytes) noexcept;

  // Bytes of the first `nbytes` that are in memory; the memory may be resized meanwhile.
  uint64_t Resident(uint64_t nbytes) const;

 private:
  std::byte* mapped_ = nullptr;
  uint64_t mapped_nbytes_ = 0;
  std::byte* base_ = nullptr;  // start of the addresses, where huge pages may begin
  uint64_t reserved_ = 0, nbytes_ = 0;
};

}  // namespace flexcomp

#include "pool/lane_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/error.h"
#include "base/resident.h"

namespace flexcomp {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
// Addresses that nobody may use take no memory, and no system counts them as promised.
constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

uint64_t RoundedUp(uint64_t nbytes, uint64_t unit) noexcept { return (nbytes + unit - 1) / unit * unit; }

}  // namespace

LaneMemory::LaneMemory() : LaneMemory(static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * SystemPage()) {}

LaneMemory::LaneMemory(uint64_t most) : reserved_(RoundedUp(most, kHugePage)) {
  mapped_nbytes_ = reserved_ + kHugePage;
  void* mapped = ::mmap(nullptr, mapped_nbytes_, PROT_NONE, kReserved, -1, 0);
  if (mapped == MAP_FAILED) RaiseError("BudgetError", "cannot reserve ", mapped_nbytes_, " bytes of addresses: ", ErrnoText(errno));
  mapped_ = static_cast<std::byte*>(mapped);
  const uint64_t address = reinterpret_cast<uintptr_t>(mapped_);
  base_ = mapped_ + (RoundedUp(address, kHugePage) - address);
}

LaneMemory::~LaneMemory() { ::munmap(mapped_, mapped_nbytes_); }

void LaneMemory::Grow(uint64_t asked) {
  const uint64_t nbytes = RoundedUp(asked, SystemPage());
  if (nbytes <= nbytes_) return;
  if (nbytes > reserved_) RaiseError("BudgetError", "a lane of ", asked, " bytes is more than this machine has memory");
  Open(0, nbytes);
  nbytes_ = nbytes;
}

void LaneMemory::Open(uint64_t at, uint64_t nbytes) {
  if (::mprotect(base_ + at, nbytes, PROT_READ | PROT_WRITE) != 0)
    RaiseError("BudgetError", "cannot map ", nbytes, " bytes of a lane: ", ErrnoText(errno));
  ::madvise(base_ + at, nbytes, MADV_DONTFORK);  // as of an arena
#ifdef MADV_HUGEPAGE
  ::madvise(base_ + at, nbytes, MADV_HUGEPAGE);
#endif
}

// Also so that no huge page reaches beyond the usable memory. Where the system cannot note one more range, the memory
// goes back all the same.
void LaneMemory::Shut(uint64_t at, uint64_t nbytes) noexcept {
  if (::mmap(base_ + at, nbytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0) == MAP_FAILED) ::madvise(base_ + at, nbytes, MADV_DONTNEED);
}

void LaneMemory::Shrink(uint64_t asked) noexcept {
  const uint64_t nbytes = RoundedUp(asked, SystemPage());
  if (nbytes >= nbytes_) return;
  // Of a huge page that is given back in part, a control group would go on counting all.
  const uint64_t whole = nbytes / kHugePage * kHugePage;
  ::madvise(base_ + whole, nbytes_ - whole, MADV_DONTNEED);
  Shut(nbytes, nbytes_ - nbytes);
  nbytes_ = nbytes;
}

uint64_t LaneMemory::Resident(uint64_t nbytes) const { return ResidentBytes(base_, nbytes); }

}  // namespace flexcomp

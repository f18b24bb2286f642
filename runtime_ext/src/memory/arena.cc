#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/resident.h"
#include "program/program.h"

namespace flexcomp {
namespace {

constexpr uint64_t kHugePage = 2 << 20;

// One that holds nothing has an address, too.
uint64_t Mapped(uint64_t asked) noexcept { return RoundUp(std::max<uint64_t>(asked, 1), SystemPage()); }

// For an arena of `nbytes`, and `more` of which both ends are given back.
std::byte* Map(uint64_t nbytes, uint64_t more) {
  void* base = ::mmap(nullptr, nbytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) RaiseError("BudgetError", "cannot map an arena of ", nbytes, " bytes: ", ErrnoText(errno));
  return static_cast<std::byte*>(base);
}

// Where the system refuses to unmap (two ranges would have to be noted instead of one), the memory goes back all the
// same.
bool Unmap(std::byte* base, uint64_t nbytes) noexcept {
  if (nbytes == 0 || ::munmap(base, nbytes) == 0) return true;
  ::madvise(base, nbytes, MADV_DONTNEED);
  return false;
}

}  // namespace

Arena::Arena(uint64_t asked) : nbytes_(Mapped(asked)) {
  const uint64_t nbytes = nbytes_;
  if (nbytes < kHugePage) {
    base_ = Map(nbytes, 0);
  } else {
    // Huge pages need an aligned start: map more, give back both ends. A huge page never reaches beyond the
    // mapping, so the advice cannot make the arena larger than its size.
    std::byte* wide = Map(nbytes, kHugePage);
    const uint64_t address = reinterpret_cast<uintptr_t>(wide);
    const uint64_t head = RoundUp(address, kHugePage) - address;
    base_ = wide + head;
    Unmap(wide, head);
    Unmap(base_ + nbytes, kHugePage - head);
#ifdef MADV_HUGEPAGE
    ::madvise(base_, nbytes, MADV_HUGEPAGE);
#endif
  }
  // A forked process cannot use the arena, but would hold pages that are given back here; and direct reads that are
  // running at a fork may, on older systems, end in the other process's copy of a page.
  ::madvise(base_, nbytes, MADV_DONTFORK);
}

uint64_t Arena::Resident() const { return ResidentBytes(base_, nbytes_); }

bool Arena::Discard(uint64_t at, uint64_t nbytes) noexcept {
  if (nbytes == 0) return ::madvise(base_, nbytes_, MADV_DONTNEED) == 0;
  const uint64_t page = SystemPage(), low = at / page * page, high = RoundUp(at + nbytes, page);
  return (low == 0 || ::madvise(base_, low, MADV_DONTNEED) == 0) &&
         (high >= nbytes_ || ::madvise(base_ + high, nbytes_ - high, MADV_DONTNEED) == 0);
}

void Arena::Keep(const Carried& carried) noexcept {
  // Before the move, so that there is room for both places; the old place is discarded after the move.
  Discard(carried.from, carried.nbytes);
  if (carried.from == carried.to || carried.nbytes == 0) return;
  std::memmove(base_ + carried.to, base_ + carried.from, carried.nbytes);
  Discard(carried.to, carried.nbytes);
}

void Arena::TakeFrom(Arena& other, const Carried& carried) noexcept {
  other.Discard(carried.from, carried.nbytes);
  for (uint64_t done = 0; done < carried.nbytes;) {
    const uint64_t nbytes = std::min(kHugePage, carried.nbytes - done);
    std::memcpy(base_ + carried.to + done, other.base_ + carried.from + done, nbytes);
    done += nbytes;
    other.Discard(carried.from + done, carried.nbytes - done);
  }
  Discard(carried.to, carried.nbytes);  // the rest of huge pages
}

void Arena::Shrink(uint64_t nbytes, const Carried& carried) noexcept {
  nbytes = Mapped(nbytes);
  // With everything after it: of a huge page that is unmapped in part, nothing would go back.
  Keep(carried);
  if (nbytes < nbytes_ && Unmap(base_ + nbytes, nbytes_ - nbytes)) nbytes_ = nbytes;
}

bool Arena::Grow(uint64_t nbytes, const Carried& carried) noexcept {
  nbytes = Mapped(nbytes);
  void* base = ::mremap(base_, nbytes_, nbytes, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(base);
  nbytes_ = nbytes;
  Keep(carried);
  return true;
}

Arena::~Arena() {
  if (base_ != nullptr) Unmap(base_, nbytes_);
}

}  // namespace flexcomp

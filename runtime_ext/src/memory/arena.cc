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
constexpr uint64_t kMovedAtOnce = 1 << 20;  // where both places must not be in memory

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

bool Arena::Discard(std::span<const Carried> kept) noexcept {
  const uint64_t page = SystemPage();
  uint64_t at = 0;
  bool all = true;
  const auto discard = [&](uint64_t end) { all = (at >= end || ::madvise(base_ + at, end - at, MADV_DONTNEED) == 0) && all; };
  for (const Carried& one : kept) {
    if (one.nbytes == 0) continue;
    discard(one.from / page * page);
    at = std::max(at, RoundUp(one.from + one.nbytes, page));
  }
  discard(nbytes_);
  return all;
}

void Arena::Clear(std::byte* place, uint64_t nbytes) noexcept {
  const uint64_t page = SystemPage(), address = reinterpret_cast<uintptr_t>(place);
  const uint64_t head = std::min(nbytes, RoundUp(address, page) - address), whole = (nbytes - head) / page * page;
  std::memset(place, 0, head);
  if (whole > 0 && ::madvise(place + head, whole, MADV_DONTNEED) != 0) std::memset(place + head, 0, whole);
  std::memset(place + head + whole, 0, nbytes - head - whole);
}

void Arena::Move(std::span<const Carried> moves, bool sparse) noexcept {
  for (const Carried& one : moves) {
    if (one.from == one.to) continue;
    if (sparse) MoveSparse(one);
    else std::memmove(base_ + one.to, base_ + one.from, one.nbytes);
  }
}

void Arena::DiscardWhole(uint64_t low, uint64_t high) noexcept {
  low = RoundUp(low, SystemPage());
  high = high / SystemPage() * SystemPage();
  if (low < high) ::madvise(base_ + low, high - low, MADV_DONTNEED);
}

void Arena::MoveSparse(const Carried& one) noexcept {
  for (uint64_t done = 0; done < one.nbytes;) {
    const uint64_t nbytes = std::min(kMovedAtOnce, one.nbytes - done), at = one.to < one.from ? done : one.nbytes - done - nbytes;
    std::memmove(base_ + one.to + at, base_ + one.from + at, nbytes);
    // Whole pages of the source, but for those that now hold moved bytes.
    uint64_t low = one.from + at, high = low + nbytes;
    if (one.to < one.from) low = std::max(low, one.to + at + nbytes);
    else high = std::min(high, one.to + at);
    DiscardWhole(low, high);
    done += nbytes;
  }
}

bool Arena::SplitEdge(uint64_t nbytes) noexcept {
  const uint64_t begin = nbytes / kHugePage * kHugePage, end = begin + kHugePage, left = nbytes - begin;
  if (left == 0 || end > nbytes_ || left > nbytes_ - end) return false;
  std::memcpy(base_ + end, base_ + begin, left);
  if (!Unmap(base_ + nbytes, end - nbytes)) return false;
  ::madvise(base_ + begin, left, MADV_DONTNEED);
  std::memcpy(base_ + begin, base_ + end, left);
  if (end < nbytes_) Unmap(base_ + end, nbytes_ - end);
  nbytes_ = nbytes;
  return true;
}

void Arena::Shrink(uint64_t asked) noexcept {
  const uint64_t nbytes = Mapped(asked);
  if (nbytes < nbytes_ && SplitEdge(nbytes)) return;
  DiscardWhole(asked, nbytes_);  // also of an arena that holds nothing
  if (nbytes < nbytes_ && Unmap(base_ + nbytes, nbytes_ - nbytes)) nbytes_ = nbytes;
}

bool Arena::Grow(uint64_t nbytes) noexcept {
  nbytes = Mapped(nbytes);
  void* base = ::mremap(base_, nbytes_, nbytes, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(base);
  nbytes_ = nbytes;
  return true;
}

void Arena::TakeFrom(Arena& other, std::span<const Carried> moves) noexcept {
  for (const Carried& one : moves) {
    for (uint64_t done = 0; done < one.nbytes;) {
      const uint64_t nbytes = std::min(kMovedAtOnce, one.nbytes - done);
      std::memcpy(base_ + one.to + done, other.base_ + one.from + done, nbytes);
      other.DiscardWhole(one.from + done, one.from + done + nbytes);
      done += nbytes;
    }
  }
}

Arena::~Arena() {
  if (base_ != nullptr) Unmap(base_, nbytes_);
}

}  // namespace flexcomp

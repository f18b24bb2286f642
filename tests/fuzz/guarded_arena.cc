// An arena between pages that nobody may touch, in place of runtime_ext/src/memory/arena.cc: a kernel that leaves it, which no
// sanitizer looks at, is a segmentation fault.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

#include "memory/arena.h"
#include "base/error.h"
#include "program/program.h"

namespace flexcomp {
namespace {

constexpr uint64_t kGuard = uint64_t{1} << 30;  // bytes on either side: addresses only

std::mutex mutex;
std::map<std::byte*, uint64_t> mapped;  // by the base of an arena: the bytes between its guards

std::byte* Map(uint64_t nbytes) noexcept {
  void* all = ::mmap(nullptr, nbytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  std::byte* base = static_cast<std::byte*>(all) + kGuard;
  if (::mprotect(base, nbytes, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(all, nbytes + 2 * kGuard);
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  mapped[base] = nbytes;
  return base;
}

void Unmap(std::byte* base) noexcept {
  const std::lock_guard lock(mutex);
  const auto found = mapped.find(base);
  ::munmap(base - kGuard, found->second + 2 * kGuard);
  mapped.erase(found);
}

}  // namespace

Arena::Arena(uint64_t asked) : nbytes_(RoundUp(asked, kPage)) {
  if (nbytes_ >= uint64_t{1} << 40 || (base_ = Map(nbytes_)) == nullptr)
    RaiseError("BudgetError", "cannot map an arena of ", nbytes_, " bytes");
}

uint64_t Arena::Resident() const { return 0; }

bool Arena::Discard(uint64_t at, uint64_t nbytes) noexcept {
  return ::madvise(base_, at, MADV_DONTNEED) == 0 && ::madvise(base_ + at + nbytes, nbytes_ - at - nbytes, MADV_DONTNEED) == 0;
}

void Arena::Keep(const Carried& carried) noexcept {
  Discard(carried.from, carried.nbytes);
  std::memmove(base_ + carried.to, base_ + carried.from, carried.nbytes);
  Discard(carried.to, carried.nbytes);
}

void Arena::TakeFrom(Arena& other, const Carried& carried) noexcept {
  std::memcpy(base_ + carried.to, other.base_ + carried.from, carried.nbytes);
  other.Discard(0, 0);
}

void Arena::Shrink(uint64_t nbytes, const Carried& carried) noexcept {
  Keep(carried);
  ::mprotect(base_ + nbytes, nbytes_ - nbytes, PROT_NONE);
  nbytes_ = nbytes;
}

bool Arena::Grow(uint64_t nbytes, const Carried& carried) noexcept {
  std::byte* larger = nbytes < uint64_t{1} << 40 ? Map(nbytes) : nullptr;
  if (larger == nullptr) return false;
  std::memcpy(larger + carried.to, base_ + carried.from, carried.nbytes);
  Unmap(base_);
  base_ = larger;
  nbytes_ = nbytes;
  return true;
}

Arena::~Arena() {
  if (base_ != nullptr) Unmap(base_);
}

}  // namespace flexcomp

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

bool Arena::Discard(std::span<const Carried> kept) noexcept {
  uint64_t at = 0;
  for (const Carried& one : kept) {
    std::memset(base_ + at, 0, one.from - at);
    at = one.from + one.nbytes;
  }
  std::memset(base_ + at, 0, nbytes_ - at);
  return true;
}

void Arena::Clear(std::byte* place, uint64_t nbytes) noexcept { std::memset(place, 0, nbytes); }

void Arena::Move(std::span<const Carried> moves, bool) noexcept {
  for (const Carried& one : moves) std::memmove(base_ + one.to, base_ + one.from, one.nbytes);
}

void Arena::Shrink(uint64_t nbytes) noexcept {
  ::mprotect(base_ + nbytes, nbytes_ - nbytes, PROT_NONE);
  nbytes_ = nbytes;
}

bool Arena::Grow(uint64_t nbytes) noexcept {
  std::byte* larger = nbytes < uint64_t{1} << 40 ? Map(nbytes) : nullptr;
  if (larger == nullptr) return false;
  std::memcpy(larger, base_, nbytes_);
  Unmap(base_);
  base_ = larger;
  nbytes_ = nbytes;
  return true;
}

void Arena::TakeFrom(Arena& other, std::span<const Carried> moves) noexcept {
  for (const Carried& one : moves) std::memcpy(base_ + one.to, other.base_ + one.from, one.nbytes);
}

Arena::~Arena() {
  if (base_ != nullptr) Unmap(base_);
}

}  // namespace flexcomp

#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "error.h"
#include "program.h"

namespace flexcomp {
namespace {

constexpr uint64_t kHugePage = 2 << 20;

std::byte* Map(uint64_t nbytes) {
  void* base = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) RaiseError("BudgetError", "cannot map an arena of ", nbytes, " bytes: ", ErrnoText(errno));
  return static_cast<std::byte*>(base);
}

}  // namespace

Arena::Arena(uint64_t nbytes) : nbytes_(nbytes) {
  if (nbytes < kHugePage) {
    base_ = Map(nbytes);
    return;
  }
  // Huge pages need an aligned start: map more, give back both ends. A huge page never reaches beyond the
  // mapping, so the advice cannot make the arena larger than its size.
  const uint64_t whole = RoundUp(nbytes, static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));  // the system's, which may be larger
  std::byte* wide = Map(whole + kHugePage);
  const uint64_t address = reinterpret_cast<uintptr_t>(wide);
  const uint64_t head = RoundUp(address, kHugePage) - address;
  base_ = wide + head;
  if (head > 0) ::munmap(wide, head);
  if (head < kHugePage) ::munmap(base_ + whole, kHugePage - head);
#ifdef MADV_HUGEPAGE
  ::madvise(base_, nbytes, MADV_HUGEPAGE);
#endif
}

bool Arena::Discard() noexcept { return ::madvise(base_, nbytes_, MADV_DONTNEED) == 0; }

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, nbytes_);
}

}  // namespace flexcomp

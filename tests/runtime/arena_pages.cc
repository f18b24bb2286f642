// Arenas on a system whose pages have the size that is given: mappings stay within the rules, and nothing is left of them.
#include "memory/arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>

using flexcomp::Arena;

namespace {

uint64_t page = 4096;
std::set<uint64_t> mapped;  // pages of such a system, by address; those of this program's arenas
bool watching = false;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

uint64_t RoundUp(uint64_t value) { return (value + page - 1) / page * page; }

}  // namespace

extern "C" {

long sysconf(int name) noexcept {
  Require(name == _SC_PAGESIZE || !watching, "asked for something else");
  return static_cast<long>(page);
}

void* mmap(void* hint, size_t nbytes, int protection, int flags, int fd, off_t offset) noexcept {
  const auto map = [&](size_t size) { return reinterpret_cast<void*>(::syscall(SYS_mmap, hint, size, protection, flags, fd, offset)); };
  if (!watching) return map(nbytes);
  // Aligned as on such a system; what is around it stays mapped.
  const uint64_t base = RoundUp(reinterpret_cast<uint64_t>(map(RoundUp(nbytes) + page)));
  for (uint64_t at = base; at < base + RoundUp(nbytes); at += page) mapped.insert(at);
  return reinterpret_cast<void*>(base);
}

int munmap(void* data, size_t nbytes) noexcept {
  if (!watching) return static_cast<int>(::syscall(SYS_munmap, data, nbytes));
  const auto base = reinterpret_cast<uint64_t>(data);
  if (base % page != 0 || nbytes == 0) return errno = EINVAL, -1;
  for (uint64_t at = base; at < base + RoundUp(nbytes); at += page)
    Require(mapped.erase(at) == 1, "unmapped what was not mapped");
  return 0;
}

}  // extern "C"

int main(int, char** argv) {
  page = std::strtoull(argv[1], nullptr, 10);
  for (uint64_t nbytes = 4096; nbytes < 9 << 20; nbytes += nbytes < 128 << 10 ? 4096 : 4096 * 61) {
    watching = true;
    {
      Arena arena(nbytes);
      watching = false;
      const auto base = reinterpret_cast<uint64_t>(arena.base());
      Require(base % page == 0, "the arena begins inside a page");
      for (uint64_t at = base; at < base + nbytes; at += page) Require(mapped.count(at) == 1, "the arena has a hole");
      Require(mapped.size() == RoundUp(nbytes) / page, "more is mapped than the arena");
      watching = true;
    }
    watching = false;
    Require(mapped.empty(), "something is left of the arena");
  }
}

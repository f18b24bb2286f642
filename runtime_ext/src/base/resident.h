// How much of a mapping is in memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace flexcomp {

// Of this system, 4 to 64 KiB; plans and files know kPage.
inline uint64_t SystemPage() noexcept { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

// Bytes from `base`, at the start of a page, that are in memory. Walks page tables: a millisecond or two for a gigabyte of small
// pages. Throws ExecutionError.
inline uint64_t ResidentBytes(const std::byte* base, uint64_t nbytes) {
  const uint64_t page = SystemPage();
  uint64_t pages = 0;
  unsigned char present[4096];
  for (uint64_t at = 0; at < nbytes; at += sizeof(present) * page) {
    const uint64_t part = std::min(sizeof(present) * page, nbytes - at);
    if (::mincore(const_cast<std::byte*>(base) + at, part, present) != 0)
      RaiseError("ExecutionError", "cannot count pages in memory: ", ErrnoText(errno));
    pages += static_cast<uint64_t>(std::count_if(present, present + part / page, [](unsigned char p) { return p & 1; }));
  }
  return pages * page;
}

}  // namespace flexcomp

#include "memory/fresh_pages.h"

#include <sys/mman.h>

#include <algorithm>

#include "program/program.h"

namespace flexcomp {
namespace {

constexpr uint64_t kPiece = 2 << 20;  // a huge page
constexpr int kPopulateWrite = 23;    // MADV_POPULATE_WRITE, of Linux 5.14, which headers may be older than

}  // namespace

void TouchPages(std::byte* data, uint64_t nbytes) noexcept {
  for (uint64_t at = 0; at < nbytes; at += kPage) *static_cast<volatile std::byte*>(data + at) = std::byte{0};
}

bool FreshPages::PopulateSome() noexcept {
  if (populated_ >= nbytes_) return false;
  const uint64_t nbytes = std::min(kPiece, nbytes_ - populated_);
  if (::madvise(base_ + populated_, nbytes, kPopulateWrite) != 0) {
    populated_ = nbytes_;
    return false;
  }
  populated_ += nbytes;
  return true;
}

}  // namespace flexcomp

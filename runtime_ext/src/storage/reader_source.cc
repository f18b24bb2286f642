#include "storage/reader_source.h"

#include <algorithm>
#include <cerrno>

#include "base/pages.h"

namespace flexcomp {

int ReaderSource::End() noexcept {
  const auto [offset, target, nbytes] = requests_.Oldest();
  requests_.Pop();
  if (!reader_.concurrent || offset >= reader_.nbytes) return ReadNow(offset, target, nbytes);
  return copy_.Run(offset, target, std::min<uint64_t>(nbytes, RoundUp(reader_.nbytes - offset, kPage)), Part());
}

bool ReaderSource::Help() noexcept { return reader_.concurrent && copy_.Help(Part()); }

int ReaderSource::ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  if (reader_.concurrent) return ReadRange(offset, target, nbytes);
  const std::lock_guard lock(calls_);
  return ReadRange(offset, target, nbytes);
}

int ReaderSource::ReadRange(uint64_t offset, std::byte* target, size_t nbytes) const noexcept {
  constexpr int64_t kLargestErrno = 4095;
  if (offset >= reader_.nbytes) return EINVAL;
  const uint64_t wanted = std::min<uint64_t>(nbytes, reader_.nbytes - offset);
  for (uint64_t got = 0; got < wanted;) {
    const int64_t n = reader_.read(offset + got, target + got, wanted - got);
    if (n == 0) return ENODATA;
    if (n < 0) return n < -kLargestErrno ? EIO : static_cast<int>(-n);
    if (static_cast<uint64_t>(n) > wanted - got) return kOverrun;
    got += static_cast<uint64_t>(n);
  }
  return 0;
}

}  // namespace flexcomp

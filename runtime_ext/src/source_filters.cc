#include "source_filters.h"

#include <algorithm>
#include <cerrno>
#include <thread>

namespace flexcomp {

int ThrottledSource::Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto start = std::max(Clock::now(), free_at_);
  if (const int error = inner_->Read(offset, target, nbytes)) return error;
  free_at_ = start + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(static_cast<double>(nbytes) / bytes_per_second_));
  std::this_thread::sleep_until(free_at_);
  return 0;
}

int FaultySource::Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  if (left_ > 0 && --left_ == 0) return EIO;
  return inner_->Read(offset, target, nbytes);
}

}  // namespace flexcomp

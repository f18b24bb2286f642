#include "source_filters.h"

#include <algorithm>
#include <cerrno>
#include <thread>

namespace flexcomp {

void ThrottledSource::Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  const std::chrono::duration<double> service(static_cast<double>(nbytes) / bytes_per_second_);
  free_at_ = std::max(Clock::now(), free_at_) + std::chrono::duration_cast<Clock::duration>(service);
  served_at_.Push(free_at_);
  inner_->Begin(offset, target, nbytes);
}

bool ThrottledSource::Ready() noexcept { return Clock::now() >= served_at_.Oldest() && inner_->Ready(); }

int ThrottledSource::End() noexcept {
  const auto served_at = served_at_.Oldest();
  served_at_.Pop();
  const int error = inner_->End();
  std::this_thread::sleep_until(served_at);
  return error;
}

void FaultySource::Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  fails_.Push(left_ > 0 && --left_ == 0);
  inner_->Begin(offset, target, nbytes);
}

int FaultySource::End() noexcept {
  const bool fails = fails_.Oldest();
  fails_.Pop();
  const int error = inner_->End();
  return fails ? EIO : error;
}

}  // namespace flexcomp

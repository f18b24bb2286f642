#include "storage/source_filters.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/crc32.h"
#include "program/program.h"

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

void VerifiedSource::Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  requests_.Push({offset, target, nbytes});
  inner_->Begin(offset, target, nbytes);
}

int VerifiedSource::End() noexcept {
  const Request request = requests_.Oldest();
  requests_.Pop();
  const int error = inner_->End();
  if (error != 0 || !looks_) return error;
  const uint64_t nbytes = std::min<uint64_t>(request.nbytes, end_ - request.offset);
  for (uint64_t at = 0; at < nbytes; at += kPage)
    if (Crc32(0, request.target + at, std::min(kPage, nbytes - at)) != sums_[(request.offset - begin_ + at) / kPage]) return kChanged;
  return 0;
}

}  // namespace flexcomp

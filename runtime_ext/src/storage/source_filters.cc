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

int ThrottledSource::ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  const std::chrono::duration<double> service(static_cast<double>(nbytes) / bytes_per_second_);
  const auto served_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(service);
  const int error = inner_->ReadNow(offset, target, nbytes);
  std::this_thread::sleep_until(served_at);
  return error;
}

bool FaultySource::Fails() noexcept {
  uint64_t left = left_;
  while (left > 0 && !left_.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

int FaultySource::ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  const bool fails = Fails();
  const int error = inner_->ReadNow(offset, target, nbytes);
  return fails ? EIO : error;
}

void FaultySource::Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  fails_.Push(Fails());
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
  return error != 0 ? error : ErrorOf(request);
}

int VerifiedSource::ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  const int error = inner_->ReadNow(offset, target, nbytes);
  return error != 0 ? error : ErrorOf({offset, target, nbytes});
}

int VerifiedSource::ErrorOf(const Request& request) const noexcept {
  if (!looks_) return 0;
  const uint64_t nbytes = std::min<uint64_t>(request.nbytes, end_ - request.offset);
  for (uint64_t at = 0; at < nbytes; at += kPage)
    if (Crc32(0, request.target + at, std::min(kPage, nbytes - at)) != sums_[(request.offset - begin_ + at) / kPage]) return kChanged;
  return 0;
}

}  // namespace flexcomp

// Sources that change how another source behaves: slower, failing on purpose, or distrusted.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "storage/byte_source.h"

namespace flexcomp {

// Imitates slower storage, which serves one request after the other at `bytes_per_second`, and begins a request that
// waits in its queue as soon as the one before is served.
class ThrottledSource final : public ByteSource {
 public:
  ThrottledSource(std::unique_ptr<ByteSource> inner, double bytes_per_second)
      : inner_(std::move(inner)), bytes_per_second_(bytes_per_second) {}
  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override;
  int End() noexcept override;
  // In addition to the queue: such reads are few.
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  int Check() const noexcept override { return inner_->Check(); }
  bool direct() const noexcept override { return inner_->direct(); }
  bool queued() const noexcept override { return inner_->queued(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<ByteSource> inner_;
  double bytes_per_second_;
  Clock::time_point free_at_{};  // when the imitated device has served all requests
  InFlight<Clock::time_point> served_at_;
};

// Fails the read number `fail_at` (counted from 1), once, with EIO.
class FaultySource final : public ByteSource {
 public:
  FaultySource(std::unique_ptr<ByteSource> inner, uint64_t fail_at) : inner_(std::move(inner)), left_(fail_at) {}
  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override { return inner_->Ready(); }
  int End() noexcept override;
  bool Help() noexcept override { return inner_->Help(); }
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  int Check() const noexcept override { return inner_->Check(); }
  bool direct() const noexcept override { return inner_->direct(); }
  bool queued() const noexcept override { return inner_->queued(); }

 private:
  bool Fails() noexcept;

  std::unique_ptr<ByteSource> inner_;
  std::atomic<uint64_t> left_;
  InFlight<bool> fails_;
};

// Compares reads with the CRC-32 of each page. Such a read is over when the last byte has been checked.
class VerifiedSource final : public ByteSource {
 public:
  // `sums` are of the pages from `begin` to `end`, within which reads begin; the last page may be a part of one.
  VerifiedSource(std::unique_ptr<ByteSource> inner, uint64_t begin, uint64_t end, std::vector<uint32_t> sums)
      : inner_(std::move(inner)), begin_(begin), end_(end), sums_(std::move(sums)) {}
  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override { return inner_->Ready(); }
  int End() noexcept override;
  bool Help() noexcept override { return inner_->Help(); }
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  int Check() const noexcept override { return inner_->Check(); }
  bool direct() const noexcept override { return inner_->direct(); }
  bool queued() const noexcept override { return inner_->queued(); }
  // Whether reads are checked; with nothing in flight.
  void Look(bool looks) noexcept { looks_ = looks; }

 private:
  struct Request {
    uint64_t offset = 0;
    const std::byte* target = nullptr;
    size_t nbytes = 0;
  };

  int ErrorOf(const Request& request) const noexcept;  // 0, or kChanged

  std::unique_ptr<ByteSource> inner_;
  uint64_t begin_, end_;
  std::vector<uint32_t> sums_;
  bool looks_ = true;
  InFlight<Request> requests_;
};

}  // namespace flexcomp

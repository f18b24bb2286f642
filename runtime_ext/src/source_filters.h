// Sources that change how another source behaves: slower, or failing on purpose.
#pragma once

#include <chrono>
#include <memory>

#include "byte_source.h"

namespace flexcomp {

// Imitates slower storage: it serves one request after the other, each in `bytes_per_second`, and begins a request that
// waits in its queue as soon as the one before is served.
class ThrottledSource final : public ByteSource {
 public:
  ThrottledSource(std::unique_ptr<ByteSource> inner, double bytes_per_second)
      : inner_(std::move(inner)), bytes_per_second_(bytes_per_second) {}
  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override;
  int End() noexcept override;
  bool direct() const noexcept override { return inner_->direct(); }
  bool queued() const noexcept override { return inner_->queued(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<ByteSource> inner_;
  double bytes_per_second_;
  Clock::time_point free_at_{};  // when the imitated device has served what it was asked for
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
  bool direct() const noexcept override { return inner_->direct(); }
  bool queued() const noexcept override { return inner_->queued(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  uint64_t left_;
  InFlight<bool> fails_;
};

}  // namespace flexcomp

// Sources that change how another source behaves: slower, or failing on purpose.
#pragma once

#include <chrono>
#include <memory>

#include "byte_source.h"

namespace flexcomp {

// Delivers at most `bytes_per_second`, to imitate slower storage.
class ThrottledSource final : public ByteSource {
 public:
  ThrottledSource(std::unique_ptr<ByteSource> inner, double bytes_per_second)
      : inner_(std::move(inner)), bytes_per_second_(bytes_per_second) {}
  int Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool direct() const noexcept override { return inner_->direct(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  double bytes_per_second_;
  std::chrono::steady_clock::time_point free_at_{};  // when the imitated device is idle again
};

// Fails the read number `fail_at` (counted from 1), once, with EIO.
class FaultySource final : public ByteSource {
 public:
  FaultySource(std::unique_ptr<ByteSource> inner, uint64_t fail_at) : inner_(std::move(inner)), left_(fail_at) {}
  int Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool direct() const noexcept override { return inner_->direct(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  uint64_t left_;
};

}  // namespace flexcomp

// Bytes that a function gives.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "storage/byte_source.h"
#include "storage/shared_copy.h"
#include "storage/weights_source.h"

namespace flexcomp {

// The thread that ends a read calls the function; others help if several may call it.
class ReaderSource final : public ByteSource {
 public:
  explicit ReaderSource(Reader reader) : reader_(std::move(reader)) {}

  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override { requests_.Push({offset, target, nbytes}); }
  bool Ready() noexcept override { return true; }
  int End() noexcept override;
  bool Help() noexcept override;
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  int Check() const noexcept override { return 0; }
  bool direct() const noexcept override { return false; }
  bool queued() const noexcept override { return false; }

 private:
  struct Request {
    uint64_t offset = 0;
    std::byte* target = nullptr;
    size_t nbytes = 0;
  };

  auto Part() noexcept {
    return [this](uint64_t offset, std::byte* target, size_t nbytes) { return ReadNow(offset, target, nbytes); };
  }
  int ReadRange(uint64_t offset, std::byte* target, size_t nbytes) const noexcept;

  const Reader reader_;
  std::mutex calls_;  // of a reader that is not concurrent: a computing thread fetches rows while the loader reads
  SharedCopy copy_;
  InFlight<Request> requests_;
};

}  // namespace flexcomp

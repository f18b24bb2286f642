// Linux' asynchronous reads (io_submit), which queue direct reads at the device. Where the file system or an emulator
// has none, there is no queue.
#pragma once

#include <linux/aio_abi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "storage/byte_source.h"

namespace flexcomp {

class KernelAio {
 public:
  KernelAio() = default;
  ~KernelAio();  // every read that was begun has ended
  KernelAio(const KernelAio&) = delete;
  KernelAio& operator=(const KernelAio&) = delete;

  // Once, if there is to be a queue.
  void SetUp() noexcept;
  // Any thread may call it.
  bool available() const noexcept { return available_.load(std::memory_order_relaxed); }

  // Begins read number `slot` < kMostInFlight. Returns 0 or an errno value; then nothing has begun.
  int Submit(int fd, uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept;
  // Whether the read has ended. Then `*result` is the number of bytes read or a negative errno value.
  // With `wait`, waits for it; false means that waiting failed: reads in flight have come to nothing, and there is no
  // queue any more.
  bool Ended(uint32_t slot, bool wait, int64_t* result) noexcept;

 private:
  void Try() noexcept;
  void GiveUp() noexcept;

  aio_context_t context_ = 0;
  std::atomic<bool> available_{false};
  iocb blocks_[ByteSource::kMostInFlight]{};
  struct {
    bool ended;
    int64_t result;
  } outcomes_[ByteSource::kMostInFlight]{};
};

}  // namespace flexcomp

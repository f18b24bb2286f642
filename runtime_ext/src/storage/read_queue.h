// Reads that proceed while their thread does something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace flexcomp {

// Used by one thread at a time. Every read has ended before the queue is destroyed.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;

  // Begins read number `slot` < ByteSource::kMostInFlight of `nbytes` at `offset`. Returns 0 or an errno value; then
  // nothing has begun.
  virtual int Submit(uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept = 0;
  virtual bool Ended(uint32_t slot) noexcept = 0;
  // Waits for the read. Returns the number of bytes read, or a negative errno value.
  virtual int64_t Await(uint32_t slot) noexcept = 0;
};

// A queue for the file, which stays open for as long: io_uring, or threads where the system has no io_uring or forbids it to
// this process (as containers do). nullptr: no threads either. Throws std::bad_alloc.
std::unique_ptr<ReadQueue> MakeReadQueue(int fd);

}  // namespace flexcomp

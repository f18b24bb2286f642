// Linux' io_uring, without liburing: a ring for the reads of one file.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>

#include "base/unique_fd.h"
#include "storage/byte_source.h"
#include "storage/read_queue.h"

struct io_uring_sqe;
struct io_uring_cqe;
struct io_uring_params;

namespace flexcomp {

class IoUring final : public ReadQueue {
 public:
  // nullptr: the system has none, or not for this process. Throws std::bad_alloc.
  static std::unique_ptr<IoUring> Make(int fd);
  ~IoUring() override;

  int Submit(uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ended(uint32_t slot) noexcept override;
  int64_t Await(uint32_t slot) noexcept override;

 private:
  explicit IoUring(int fd) : fd_(fd) {}
  bool SetUp() noexcept;
  bool Map(const io_uring_params& params) noexcept;
  // Takes note of the reads that have ended.
  void Collect() noexcept;

  const int fd_;
  UniqueFd ring_;
  std::span<std::byte> queues_{}, entries_{};  // mapped
  // Indices that go on modulo 2^32. This thread advances the tail of the submissions and the head of the completions, the
  // kernel the other two.
  unsigned* submission_tail_ = nullptr;
  unsigned* completion_head_ = nullptr;
  unsigned* completion_tail_ = nullptr;
  unsigned* order_ = nullptr;  // of the submissions: indices of their entries
  unsigned submission_mask_ = 0, completion_mask_ = 0;
  io_uring_sqe* submissions_ = nullptr;
  const io_uring_cqe* completions_ = nullptr;
  struct {
    iovec range;
    bool ended;
    int64_t result;
  } reads_[ByteSource::kMostInFlight]{};
};

}  // namespace flexcomp

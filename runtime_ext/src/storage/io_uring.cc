#include "storage/io_uring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

namespace flexcomp {

#ifdef IORING_FEAT_SINGLE_MMAP  // in headers from Linux 5.4 on
namespace {

// The same number on every architecture; older headers lack the names.
constexpr long kSetUp = 425, kEnter = 426;

long Enter(int ring, unsigned submit, unsigned await, unsigned flags) noexcept {
  return ::syscall(kEnter, ring, submit, await, flags, nullptr, 0);
}

std::span<std::byte> MapRing(int ring, size_t nbytes, off_t what) noexcept {
  void* const place = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
  if (place == MAP_FAILED) return {};
  ::madvise(place, nbytes, MADV_DONTFORK);  // a forked process must not submit
  return {static_cast<std::byte*>(place), nbytes};
}

unsigned Acquire(unsigned* index) noexcept { return std::atomic_ref(*index).load(std::memory_order_acquire); }
void Release(unsigned* index, unsigned value) noexcept { std::atomic_ref(*index).store(value, std::memory_order_release); }

}  // namespace

std::unique_ptr<IoUring> IoUring::Make(int fd) {
  std::unique_ptr<IoUring> ring(new IoUring(fd));
  return ring->SetUp() ? std::move(ring) : nullptr;
}

bool IoUring::SetUp() noexcept {
  io_uring_params params{};
  ring_ = UniqueFd(static_cast<int>(::syscall(kSetUp, ByteSource::kMostInFlight, &params)));
  // Where the rules for a process allow one call and not the other, it is better to know before anything is in flight.
  return ring_.get() >= 0 && (params.features & IORING_FEAT_SINGLE_MMAP) != 0 && Map(params) && Enter(ring_.get(), 0, 0, 0) == 0;
}

bool IoUring::Map(const io_uring_params& params) noexcept {
  const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  queues_ = MapRing(ring_.get(), std::max(submissions, completions), IORING_OFF_SQ_RING);
  entries_ = MapRing(ring_.get(), params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  if (queues_.empty() || entries_.empty()) return false;
  const auto index = [this](uint32_t at) { return reinterpret_cast<unsigned*>(queues_.data() + at); };
  submission_tail_ = index(params.sq_off.tail);
  submission_mask_ = *index(params.sq_off.ring_mask);
  order_ = index(params.sq_off.array);
  completion_head_ = index(params.cq_off.head);
  completion_tail_ = index(params.cq_off.tail);
  completion_mask_ = *index(params.cq_off.ring_mask);
  submissions_ = reinterpret_cast<io_uring_sqe*>(entries_.data());
  completions_ = reinterpret_cast<const io_uring_cqe*>(queues_.data() + params.cq_off.cqes);
  return true;
}

IoUring::~IoUring() {
  if (!queues_.empty()) ::munmap(queues_.data(), queues_.size());
  if (!entries_.empty()) ::munmap(entries_.data(), entries_.size());
}

int IoUring::Submit(uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  reads_[slot] = {{target, nbytes}, false, 0};
  const unsigned tail = *submission_tail_, entry = tail & submission_mask_;
  io_uring_sqe& read = submissions_[entry];
  read = {};
  read.opcode = IORING_OP_READV;  // the first kernels with io_uring have no other
  read.fd = fd_;
  read.off = offset;
  read.addr = reinterpret_cast<uint64_t>(&reads_[slot].range);
  read.len = 1;
  read.user_data = slot;
  order_[entry] = entry;
  Release(submission_tail_, tail + 1);
  if (Enter(ring_.get(), 1, 0, 0) == 1) return 0;
  const int error = errno;
  Release(submission_tail_, tail);  // the kernel looks at it in a call only
  return error != 0 ? error : EAGAIN;
}

void IoUring::Collect() noexcept {
  unsigned head = *completion_head_;
  for (const unsigned tail = Acquire(completion_tail_); head != tail; ++head) {
    const io_uring_cqe& ended = completions_[head & completion_mask_];
    reads_[ended.user_data].ended = true;
    reads_[ended.user_data].result = ended.res;
  }
  Release(completion_head_, head);
}

bool IoUring::Ended(uint32_t slot) noexcept {
  Collect();
  return reads_[slot].ended;
}

int64_t IoUring::Await(uint32_t slot) noexcept {
  while (!Ended(slot))
    // A system that no longer allows the call goes on with the reads.
    if (Enter(ring_.get(), 0, 1, IORING_ENTER_GETEVENTS) < 0 && errno != EINTR)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return reads_[slot].result;
}

#else

std::unique_ptr<IoUring> IoUring::Make(int) { return nullptr; }
IoUring::~IoUring() = default;
int IoUring::Submit(uint32_t, uint64_t, std::byte*, size_t) noexcept { return ENOSYS; }
bool IoUring::Ended(uint32_t) noexcept { return true; }
int64_t IoUring::Await(uint32_t) noexcept { return -ENOSYS; }

#endif

}  // namespace flexcomp

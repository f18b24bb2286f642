#include "storage/kernel_aio.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace flexcomp {
namespace {

// A queue of this process that nobody uses. The kernel takes 30 ms to take one down, so one is left for the next file.
std::atomic<aio_context_t> idle{0};

}  // namespace

void KernelAio::SetUp() noexcept {
  context_ = idle.exchange(0);
  if (context_ != 0) {
    Try();
    if (available()) return;  // it is not there in a process that was forked since
    context_ = 0;
  }
  if (::syscall(SYS_io_setup, ByteSource::kMostInFlight, &context_) == 0) Try();
}

KernelAio::~KernelAio() {
  if (!available()) return;
  const aio_context_t other = idle.exchange(context_);
  if (other != 0) ::syscall(SYS_io_destroy, other);
}

// Where the rules for a process allow one call and not the other, it is better to know before anything is in flight.
void KernelAio::Try() noexcept {
  available_ = true;
  while (::syscall(SYS_io_getevents, context_, 0, 0, nullptr, nullptr) != 0)
    if (errno != EINTR) return GiveUp();
}

// The kernel writes into the targets of reads in flight until it has told of their ends, or the context is gone.
void KernelAio::GiveUp() noexcept {
  while (::syscall(SYS_io_destroy, context_) != 0 && errno != EINVAL) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  available_ = false;
}

int KernelAio::Submit(int fd, uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  iocb& block = blocks_[slot];
  block = {};
  block.aio_data = slot;
  block.aio_lio_opcode = IOCB_CMD_PREAD;
  block.aio_fildes = static_cast<uint32_t>(fd);
  block.aio_buf = reinterpret_cast<uint64_t>(target);
  block.aio_nbytes = nbytes;
  block.aio_offset = static_cast<int64_t>(offset);
  outcomes_[slot] = {false, 0};
  iocb* one = &block;
  return ::syscall(SYS_io_submit, context_, 1, &one) == 1 ? 0 : (errno != 0 ? errno : EAGAIN);
}

bool KernelAio::Ended(uint32_t slot, bool wait, int64_t* result) noexcept {
  while (!outcomes_[slot].ended && available()) {
    io_event events[ByteSource::kMostInFlight];
    const long count = ::syscall(SYS_io_getevents, context_, wait ? 1 : 0, ByteSource::kMostInFlight, events, nullptr);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && wait) GiveUp();
    for (long i = 0; i < count; ++i) outcomes_[events[i].data] = {true, events[i].res};
    if (count <= 0) break;
  }
  *result = outcomes_[slot].result;
  return outcomes_[slot].ended;
}

}  // namespace flexcomp

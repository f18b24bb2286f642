#include "kernel_aio.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace flexcomp {

KernelAio::KernelAio() noexcept {
  if (::syscall(SYS_io_setup, ByteSource::kMostInFlight, &context_) != 0) context_ = 0;
}

KernelAio::~KernelAio() {
  if (context_ != 0) ::syscall(SYS_io_destroy, context_);
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
  while (!outcomes_[slot].ended) {
    io_event events[ByteSource::kMostInFlight];
    const long count = ::syscall(SYS_io_getevents, context_, wait ? 1 : 0, ByteSource::kMostInFlight, events, nullptr);
    if (count < 0 && errno == EINTR) continue;
    for (long i = 0; i < count; ++i) outcomes_[events[i].data] = {true, events[i].res};
    if (count <= 0) break;
  }
  *result = outcomes_[slot].result;
  return outcomes_[slot].ended;
}

}  // namespace flexcomp

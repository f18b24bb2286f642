#include "storage/read_threads.h"

#include <unistd.h>

#include <cerrno>

namespace flexcomp {

ReadThreads::ReadThreads(int fd) : fd_(fd) {
  try {
    for (Reader& reader : readers_) reader.thread.emplace([this, &reader] { Serve(reader); });
  } catch (...) {
    Stop();
    throw;
  }
}

ReadThreads::~ReadThreads() { Stop(); }

void ReadThreads::Stop() noexcept {
  for (Reader& reader : readers_) reader.state.Set(kStopped);
  for (Reader& reader : readers_)
    if (reader.thread) reader.thread->join();
}

int ReadThreads::Submit(uint32_t slot, uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  Reader& reader = readers_[slot];
  reader.offset = offset;
  reader.target = target;
  reader.nbytes = nbytes;
  reader.state.Set(kBegun);
  return 0;
}

int64_t ReadThreads::Await(uint32_t slot) noexcept {
  readers_[slot].state.WaitEqual(kEnded);
  return readers_[slot].result;
}

void ReadThreads::Serve(Reader& reader) const noexcept {
  while (reader.state.WaitOther(kEnded) != kStopped) {
    do {
      reader.result = ::pread64(fd_, reader.target, reader.nbytes, static_cast<off64_t>(reader.offset));
    } while (reader.result < 0 && errno == EINTR);
    if (reader.result < 0) reader.result = -errno;
    reader.state.Set(kEnded);
  }
}

}  // namespace flexcomp

// A queue for reads whose calls fail: whatever goes wrong, reads bring the bytes of the file, and nothing is written into
// their targets once they have ended. Where setting up a ring fails, threads read.
#include <dlfcn.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "program/program.h"
#include "storage/file_source.h"

using flexcomp::ByteSource;
using flexcomp::FileSource;
using flexcomp::kPage;

namespace {

constexpr size_t kNbytes = 4 * kPage;

void Require(bool holds, const char* what, int number = 0) {
  if (holds) return;
  std::fprintf(stderr, "%s (%d)\n", what, number);
  std::_Exit(1);
}

// A ring of this program: carries reads out as late as it may, when it is waited for or its calls fail.
struct Ring {
  int memory = -1;
  std::byte *queues = nullptr, *entries = nullptr;
  std::deque<io_uring_sqe> reads;
  int calls = 0, fail_at = 0;  // the call of this number fails, counted from 1
  int failures = 1;            // so often in a row
  int error = EINVAL;
  static constexpr unsigned kEntries = 8, kHead = 0, kTail = 4, kMask = 8, kOrder = 64, kCompletions = 256;

  ~Ring() {
    if (memory < 0) return;
    ::munmap(queues, kPage);
    ::munmap(entries, kPage);
    ::close(memory);
  }
  std::byte* Map(off_t at) const {
    void* const place = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, memory, at);
    Require(place != MAP_FAILED, "no memory for a ring");
    return static_cast<std::byte*>(place);
  }
  std::atomic_ref<unsigned> At(unsigned at) const { return std::atomic_ref(*reinterpret_cast<unsigned*>(queues + at)); }

  int SetUp(io_uring_params& params) {
    memory = ::memfd_create("ring", MFD_CLOEXEC);
    Require(memory >= 0 && ::ftruncate(memory, IORING_OFF_SQES + static_cast<off_t>(kPage)) == 0, "no memory for a ring");
    queues = Map(IORING_OFF_SQ_RING);
    entries = Map(IORING_OFF_SQES);
    params = {};
    params.features = IORING_FEAT_SINGLE_MMAP;
    params.sq_entries = kEntries;
    params.cq_entries = 2 * kEntries;
    params.sq_off.head = kHead;
    params.sq_off.tail = kTail;
    params.sq_off.ring_mask = kMask;
    params.sq_off.array = kOrder;
    At(kMask) = kEntries - 1;
    params.cq_off.head = kCompletions + kHead;
    params.cq_off.tail = kCompletions + kTail;
    params.cq_off.ring_mask = kCompletions + kMask;
    params.cq_off.cqes = kCompletions + kOrder;
    At(kCompletions + kMask) = 2 * kEntries - 1;
    return ::dup(memory);
  }

  void Carry() {
    const io_uring_sqe read = reads.front();
    reads.pop_front();
    const auto& range = *reinterpret_cast<const iovec*>(read.addr);
    const ssize_t n = ::pread(read.fd, range.iov_base, range.iov_len, static_cast<off_t>(read.off));
    const unsigned tail = At(kCompletions + kTail);
    Require(tail - At(kCompletions + kHead) < 2 * kEntries, "nobody collects what has ended");
    auto* const completions = reinterpret_cast<io_uring_cqe*>(queues + kCompletions + kOrder);
    completions[tail % (2 * kEntries)] = {read.user_data, static_cast<int>(n), 0};
    At(kCompletions + kTail) = tail + 1;
  }

  long Call(long number, const long* args) {
    const bool fails = ++calls >= fail_at && calls < fail_at + failures;
    if (fails) {
      if (!reads.empty()) Carry();  // the kernel goes on
      return errno = error, -1;
    }
    if (number == SYS_io_uring_setup) return SetUp(*reinterpret_cast<io_uring_params*>(args[1]));
    for (; At(kHead) != At(kTail); At(kHead) += 1) {
      const unsigned entry = At(kOrder + At(kHead) % kEntries * sizeof(unsigned));
      const io_uring_sqe& read = reinterpret_cast<const io_uring_sqe*>(entries)[entry];
      Require(read.opcode == IORING_OP_READV && args[1] == 1, "another request");
      reads.push_back(read);
    }
    for (long count = args[2]; count > 0 && !reads.empty(); --count) Carry();
    return args[1];
  }
};

Ring* ring = nullptr;

}  // namespace

extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long args[6];
  for (long& arg : args) arg = va_arg(list, long);
  va_end(list);
  static const auto next = reinterpret_cast<long (*)(long, ...)>(::dlsym(RTLD_NEXT, "syscall"));
  if (number != SYS_io_uring_setup && number != SYS_io_uring_enter) return next(number, args[0], args[1], args[2], args[3], args[4], args[5]);
  return ring->Call(number, args);
}

int main(int, char** argv) {
  constexpr size_t kReads = 24;
  std::vector<std::byte> file(kReads * kNbytes);
  {
    std::FILE* opened = std::fopen(argv[1], "rb");
    Require(opened != nullptr && std::fread(file.data(), 1, file.size(), opened) == file.size(), "the file is too short");
    std::fclose(opened);
  }
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kPage, ByteSource::kMostInFlight * kNbytes), &std::free);
  auto* const targets = static_cast<std::byte*>(memory.get());

  int calls = 0;  // of a source without failures
  bool direct = true;
  for (const int error : {EINVAL, EINTR, EAGAIN, ENOSYS})
    for (const int failures : {1, 3, 1 << 20})
      for (int fail_at = 0; fail_at <= calls; ++fail_at) {
        Ring now;
        now.fail_at = fail_at == 0 ? 1 << 30 : fail_at;
        now.failures = failures;
        now.error = error;
        ring = &now;
        {
          FileSource source(argv[1], true);
          direct = source.direct();
          uint32_t begun = 0, ended = 0;
          const auto end = [&] {
            std::byte* target = targets + ended % ByteSource::kMostInFlight * kNbytes;
            Require(source.End() == 0, "a read failed", fail_at);
            Require(std::memcmp(target, file.data() + ended * kNbytes, kNbytes) == 0, "a read brought other bytes", fail_at);
            std::memset(target, 0xA5, kNbytes);
            // Nobody else writes there, until the next read is begun.
            for (const io_uring_sqe& read : now.reads)
              Require(reinterpret_cast<const iovec*>(read.addr)->iov_base != target, "the kernel may still write where a read has ended", fail_at);
            ++ended;
          };
          for (; begun < kReads; ++begun) {
            if (begun - ended == ByteSource::kMostInFlight) end();
            if (begun > ended) source.Ready();
            source.Begin(begun * kNbytes, targets + begun % ByteSource::kMostInFlight * kNbytes, kNbytes);
          }
          while (ended + 2 < kReads) end();  // the rest is for the destructor
        }
        Require(now.reads.empty(), "reads are in flight without a source", fail_at);
        if (fail_at == 0 && calls == 0) calls = now.calls;
      }
  Require(!direct || calls > static_cast<int>(kReads), "reads were not queued");
  if (!direct) std::printf("no queue: %s lies on a file system without O_DIRECT\n", argv[1]);
}

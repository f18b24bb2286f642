// A queue for reads whose calls fail: whatever goes wrong, reads bring the bytes of the file, and nothing is written into
// their targets once they have ended.
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// Takes reads, and carries them out as late as it may: when it is waited for, or taken down.
struct Queue {
  bool there = false;
  int made = 0;
  std::deque<iocb> reads;
  int calls = 0, fail_at = 0;  // the call of this number fails, counted from 1
  int failures = 1;            // so often in a row
  int error = EINVAL;

  void Carry(io_event* event) {
    const iocb read = reads.front();
    reads.pop_front();
    const ssize_t n = ::pread(static_cast<int>(read.aio_fildes), reinterpret_cast<void*>(read.aio_buf), read.aio_nbytes, read.aio_offset);
    if (event != nullptr) *event = {read.aio_data, 0, n, 0};
  }

  long Call(long number, long* args) {
    const bool fails = ++calls >= fail_at && calls < fail_at + failures;
    if (fails && !(number == SYS_io_destroy && error == EINVAL)) return errno = error, -1;
    switch (number) {
      case SYS_io_setup:
        there = true;
        ++made;
        *reinterpret_cast<aio_context_t*>(args[1]) = 1;
        return 0;
      case SYS_io_destroy:
        if (!there) return errno = EINVAL, -1;
        while (!reads.empty()) Carry(nullptr);
        there = false;
        return 0;
      case SYS_io_submit:
        Require(there, "submitted to a queue that is gone");
        reads.push_back(**reinterpret_cast<iocb**>(args[2]));
        return 1;
      case SYS_io_getevents: {
        if (!there && args[2] == 0) return errno = EINVAL, -1;  // asked whether it is there
        Require(there, "waited for a queue that is gone");
        long count = 0;
        while (count < static_cast<int>(args[1])) Carry(reinterpret_cast<io_event*>(args[3]) + count++);
        return count;
      }
      default:
        Require(false, "another system call");
        return -1;
    }
  }
};

Queue* queue = nullptr;

}  // namespace

extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long args[6];
  for (long& arg : args) arg = va_arg(list, long);
  va_end(list);
  return queue->Call(number, args);
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

  constexpr int kAsked = 2;  // calls that ask for the last source's queue, and take leave of it
  int calls = 0;             // of a source without failures
  bool direct = true;
  for (const int error : {EINVAL, EINTR, EAGAIN, ENOSYS})
    for (const int failures : {1, error == EINVAL ? 2 : 3})  // io_destroy says EINVAL where there is no queue
      for (int fail_at = 0; fail_at <= calls + kAsked; ++fail_at) {
        Queue now;
        now.fail_at = fail_at == 0 ? 1 << 30 : fail_at;
        now.failures = failures;
        now.error = error;
        queue = &now;
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
            for (const iocb& read : now.reads)
              Require(reinterpret_cast<std::byte*>(read.aio_buf) != target, "the kernel may still write where a read has ended", fail_at);
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

  // Of sources one after another all use one queue, of two at once each has its own, and a forked process makes a new one.
  const auto read = [&](FileSource& source) {
    source.Begin(0, targets, kNbytes);
    Require(source.End() == 0 && std::memcmp(targets, file.data(), kNbytes) == 0, "a read brought other bytes");
  };
  for (const bool gone : {false, true}) {
    Queue now, child;
    now.fail_at = child.fail_at = 1 << 30;
    queue = &now;
    for (int i = 0; i < 3; ++i) {
      FileSource source(argv[1], true);
      read(source);
    }
    Require(!direct || (now.made == 1 && now.there), "a queue was not kept for the next source", now.made);
    if (gone) queue = &child;
    {
      FileSource first(argv[1], true), second(argv[1], true);
      read(first);
      read(second);
    }
    Require(!direct || (now.made + child.made == (gone ? 3 : 2)), "two sources had one queue", now.made);
  }
  Require(!direct || calls > static_cast<int>(kReads), "reads were not queued");
  if (!direct) std::printf("no queue: %s lies on a file system without O_DIRECT\n", argv[1]);
}

#include "process_start.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace flexcomp::runner {
namespace {

int64_t NsOf(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// On a run queue, as the second number of schedstat says.
int64_t WaitedNs() {
  const int fd = ::open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[128];
  const ssize_t n = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  text[n > 0 ? n : 0] = '\0';
  long long ran = 0, waited = 0;
  return std::sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : 0;
}

}  // namespace

int64_t MonotonicNs() { return NsOf(CLOCK_MONOTONIC); }

int64_t ProcessStartNs() { return MonotonicNs() - NsOf(CLOCK_PROCESS_CPUTIME_ID) - WaitedNs(); }

}  // namespace flexcomp::runner

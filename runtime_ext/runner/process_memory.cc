#include "process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace flexcomp::runner {
namespace {

// A line "Key:   123 kB" of /proc/self/status, in bytes.
uint64_t StatusBytes(const char* key) {
  char text[4096];
  const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  text[n > 0 ? n : 0] = '\0';
  unsigned long long kilobytes = 0;
  if (const char* line = std::strstr(text, key)) std::sscanf(line + std::strlen(key), ": %llu", &kilobytes);
  return kilobytes << 10;
}

}  // namespace

uint64_t RssBytes() { return StatusBytes("VmRSS"); }
uint64_t PeakRssBytes() { return StatusBytes("VmHWM"); }

bool ResetPeakRss() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, "5", 1) == 1;
  ::close(fd);
  return done;
}

}  // namespace flexcomp::runner

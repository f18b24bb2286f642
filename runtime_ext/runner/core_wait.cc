#include "core_wait.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

namespace flexcomp::runner {
namespace {

// The second number of a thread's schedstat: the time on a run queue.
std::optional<int64_t> WaitOf(const char* thread) {
  const std::string path = std::string("/proc/self/task/") + thread + "/schedstat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char text[128];
  const ssize_t n = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  text[n > 0 ? n : 0] = '\0';
  long long ran = 0, waited = 0;
  if (std::sscanf(text, "%lld %lld", &ran, &waited) != 2) return std::nullopt;
  return waited;
}

}  // namespace

std::optional<int64_t> CoreWaitNs() {
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(::opendir("/proc/self/task"), ::closedir);
  if (threads == nullptr) return std::nullopt;
  std::optional<int64_t> total;
  while (const dirent* entry = ::readdir(threads.get())) {
    if (entry->d_name[0] == '.') continue;
    if (const std::optional<int64_t> waited = WaitOf(entry->d_name)) total = total.value_or(0) + *waited;
  }
  return total;
}

}  // namespace flexcomp::runner

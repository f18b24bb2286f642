// Preloaded into a server: reads of the file that is named in the file $FAILING_DISK end as those of a broken disk do.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using Syscall = long (*)(long, long, long, long, long, long, long);
using Pread = ssize_t (*)(int, void*, size_t, off64_t);

bool IsBroken(int fd) {
  static const char* const name = std::getenv("FAILING_DISK");
  const int switched = name == nullptr ? -1 : ::open(name, O_RDONLY | O_CLOEXEC);
  if (switched < 0) return false;
  char broken[4096] = {}, link[64] = "/proc/self/fd/", read[4096] = {};
  const ssize_t length = ::read(switched, broken, sizeof(broken) - 1);
  ::close(switched);
  char digits[12];
  char* digit = digits + sizeof(digits) - 1;
  *digit = 0;
  do *--digit = static_cast<char>('0' + fd % 10);
  while ((fd /= 10) > 0);
  std::strcat(link, digit);
  return length > 0 && ::readlink(link, read, sizeof(read) - 1) > 0 && std::strcmp(broken, read) == 0;
}

}  // namespace

extern "C" {

ssize_t pread64(int fd, void* target, size_t nbytes, off64_t at) {
  static const auto next = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread64"));
  if (IsBroken(fd)) return errno = EIO, -1;
  return next(fd, target, nbytes, at);
}

long syscall(long number, ...) noexcept {
  static const auto next = reinterpret_cast<Syscall>(::dlsym(RTLD_NEXT, "syscall"));
  long a[6];
  va_list more;
  va_start(more, number);
  for (long& one : a) one = va_arg(more, long);
  va_end(more);
  if (number == SYS_io_uring_setup) return errno = ENOSYS, -1;  // so that threads read, by the function above
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"

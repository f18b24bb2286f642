// Preloaded into a process: makes one call of the C library fail, the n-th of those that count.
//
// Calls count while a window is open, in every thread but those that step out of it. What cannot fail for want of
// something, or is how threads wait for each other (futex), is left out.
#include "interposer.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace {

std::atomic<uint64_t> count{0}, fail_at{0};
int variant = 0;
volatile FaultedCall* call_that_failed = nullptr;
std::atomic<bool> open_window{false};
thread_local bool inside = true;  // in the static block: this library is there from the start

// The errno value with which this call of `what` shall fail; 0: not at all.
template <typename... Errors>
int Fault(const char* what, Errors... errors) {
  if (!open_window.load(std::memory_order_relaxed) || !inside) return 0;
  if (++count != fail_at.load(std::memory_order_relaxed)) return 0;
  const int choices[] = {errors...};
  call_that_failed->variants = static_cast<int>(sizeof...(errors));
  call_that_failed->name = what;
  return choices[variant % static_cast<int>(sizeof...(errors))];
}

template <typename Function>
Function Next(const char* symbol) {
  const bool before = inside;
  inside = false;
  const auto found = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, symbol));
  inside = before;
  return found;
}

}  // namespace

extern "C" {

void fault_arm(uint64_t n, int which, volatile FaultedCall* call) {
  count = 0;
  fail_at = n;
  variant = which;
  call_that_failed = call;
  open_window = true;
}
void fault_disarm() { open_window = false; }
void fault_step(bool into) { inside = into; }
uint64_t fault_count() { return count; }

// ------------------------------------------------------------------------------------------------ memory
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t nbytes) {
  if (const int error = Fault("malloc", ENOMEM)) return errno = error, nullptr;
  return __libc_malloc(nbytes);
}
void* calloc(size_t number, size_t nbytes) {
  if (const int error = Fault("calloc", ENOMEM)) return errno = error, nullptr;
  return __libc_calloc(number, nbytes);
}
void* realloc(void* old, size_t nbytes) {
  if (const int error = Fault("realloc", ENOMEM)) return errno = error, nullptr;
  return __libc_realloc(old, nbytes);
}
void* aligned_alloc(size_t alignment, size_t nbytes) {
  if (const int error = Fault("aligned_alloc", ENOMEM)) return errno = error, nullptr;
  return __libc_memalign(alignment, nbytes);
}
void* memalign(size_t alignment, size_t nbytes) {
  if (const int error = Fault("memalign", ENOMEM)) return errno = error, nullptr;
  return __libc_memalign(alignment, nbytes);
}
int posix_memalign(void** out, size_t alignment, size_t nbytes) {
  if (const int error = Fault("posix_memalign", ENOMEM)) return error;
  void* data = __libc_memalign(alignment, nbytes);
  if (data == nullptr) return ENOMEM;
  *out = data;
  return 0;
}

// A call that returns -1, or something else that means failure, and sets errno.
#define WRAP(type, call, failed, parameters, arguments, ...)                       \
  type call parameters {                                                           \
    static const auto next = Next<type(*) parameters>(#call);                      \
    if (const int error = Fault(#call, __VA_ARGS__)) return errno = error, failed; \
    return next arguments;                                                         \
  }

WRAP(void*, mmap, MAP_FAILED, (void* at, size_t nbytes, int access, int flags, int fd, off_t offset),
     (at, nbytes, access, flags, fd, offset), ENOMEM)
WRAP(void*, mmap64, MAP_FAILED, (void* at, size_t nbytes, int access, int flags, int fd, off64_t offset),
     (at, nbytes, access, flags, fd, offset), ENOMEM)
WRAP(int, munmap, -1, (void* at, size_t nbytes), (at, nbytes), ENOMEM)
WRAP(int, madvise, -1, (void* at, size_t nbytes, int advice) noexcept, (at, nbytes, advice), ENOMEM)
WRAP(int, mprotect, -1, (void* at, size_t nbytes, int access) noexcept, (at, nbytes, access), ENOMEM)
WRAP(int, mincore, -1, (void* at, size_t nbytes, unsigned char* present) noexcept, (at, nbytes, present), EAGAIN)

void* mremap(void* at, size_t old_nbytes, size_t nbytes, int flags, ...) noexcept {
  using Function = void* (*)(void*, size_t, size_t, int, void*);
  static const auto next = Next<Function>("mremap");
  va_list more;
  va_start(more, flags);
  void* target = (flags & MREMAP_FIXED) ? va_arg(more, void*) : nullptr;
  va_end(more);
  if (const int error = Fault("mremap", ENOMEM)) return errno = error, MAP_FAILED;
  return next(at, old_nbytes, nbytes, flags, target);
}

// ------------------------------------------------------------------------------------------------- files
#define WRAP_OPEN(call)                                                             \
  int call(const char* path, int flags, ...) {                                      \
    static const auto next = Next<int (*)(const char*, int, mode_t)>(#call);        \
    va_list more;                                                                   \
    va_start(more, flags);                                                          \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                   \
    if (const int error = Fault(#call, EMFILE, EIO)) return errno = error, -1;      \
    return next(path, flags, mode);                                                 \
  }
WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP(FILE*, fopen, nullptr, (const char* path, const char* mode), (path, mode), EMFILE)
WRAP(FILE*, fopen64, nullptr, (const char* path, const char* mode), (path, mode), EMFILE)
WRAP(int, fstat, -1, (int fd, struct stat* status) noexcept, (fd, status), EIO)
WRAP(int, fstat64, -1, (int fd, struct stat64* status) noexcept, (fd, status), EIO)
WRAP(int, stat, -1, (const char* path, struct stat* status) noexcept, (path, status), EIO)
WRAP(int, stat64, -1, (const char* path, struct stat64* status) noexcept, (path, status), EIO)
WRAP(int, fstatfs, -1, (int fd, struct statfs* system) noexcept, (fd, system), EIO)
WRAP(int, fstatfs64, -1, (int fd, struct statfs64* system) noexcept, (fd, system), EIO)
WRAP(ssize_t, read, -1, (int fd, void* target, size_t nbytes), (fd, target, nbytes), EIO, EINTR)
WRAP(ssize_t, pread, -1, (int fd, void* target, size_t nbytes, off_t at), (fd, target, nbytes, at), EIO, EINTR)
WRAP(ssize_t, pread64, -1, (int fd, void* target, size_t nbytes, off64_t at), (fd, target, nbytes, at), EIO, EINTR)

int posix_fadvise(int fd, off_t at, off_t nbytes, int advice) noexcept {
  static const auto next = Next<int (*)(int, off_t, off_t, int)>("posix_fadvise");
  if (const int error = Fault("posix_fadvise", EIO)) return error;
  return next(fd, at, nbytes, advice);
}
int posix_fadvise64(int fd, off64_t at, off64_t nbytes, int advice) noexcept {
  static const auto next = Next<int (*)(int, off64_t, off64_t, int)>("posix_fadvise64");
  if (const int error = Fault("posix_fadvise64", EIO)) return error;
  return next(fd, at, nbytes, advice);
}

long syscall(long number, ...) noexcept {
  using Function = long (*)(long, long, long, long, long, long, long);
  static const auto next = Next<Function>("syscall");
  long a[6];
  va_list more;
  va_start(more, number);
  for (long& one : a) one = va_arg(more, long);
  va_end(more);
  int error = 0;
  if (number == SYS_io_uring_setup) error = Fault("io_uring_setup", EMFILE, ENOSYS);
  if (number == SYS_io_uring_enter) error = Fault("io_uring_enter", EINTR, EBUSY);
  if (error != 0) return errno = error, -1;
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// ----------------------------------------------------------------------------------------------- threads
WRAP(int, sched_setaffinity, -1, (pid_t thread, size_t nbytes, const cpu_set_t* set) noexcept, (thread, nbytes, set), EPERM)
WRAP(int, sched_getaffinity, -1, (pid_t thread, size_t nbytes, cpu_set_t* set) noexcept, (thread, nbytes, set), EINVAL)

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*), void* argument) noexcept {
  using Function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = Next<Function>("pthread_create");
  if (const int error = Fault("pthread_create", EAGAIN)) return error;
  return next(thread, attributes, main, argument);
}
int pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) noexcept {
  static const auto next = Next<int (*)(pthread_key_t*, void (*)(void*))>("pthread_key_create");
  if (const int error = Fault("pthread_key_create", EAGAIN, ENOMEM)) return error;
  return next(key, destroy);
}
int pthread_setspecific(pthread_key_t key, const void* value) noexcept {
  static const auto next = Next<int (*)(pthread_key_t, const void*)>("pthread_setspecific");
  if (const int error = value == nullptr ? 0 : Fault("pthread_setspecific", ENOMEM)) return error;
  return next(key, value);
}

}  // extern "C"

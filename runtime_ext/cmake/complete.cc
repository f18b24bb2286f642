// Goes with a static libstdc++ into wheels for older glibcs than the compiler's: functions that those lack.
#include <pthread.h>

#include <cerrno>
#include <ctime>

#define HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// Tells a complete object from one that needs a C++ library.
HIDDEN extern const char flexcomp_has_cxx_library = 1;

// glibc 2.32: whether atomic operations may be left out. Never.
HIDDEN char __libc_single_threaded = 0;

// glibc 2.30. The other clock is the system's, which may be set: waits are short, and conditions are looked at again after each.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr long kSecond = 1'000'000'000, kMost = kSecond / 10;
  timespec now{}, system{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &system);
  const long long left = (until->tv_sec - now.tv_sec) * 1LL * kSecond + until->tv_nsec - now.tv_nsec;
  if (left <= 0) return ETIMEDOUT;
  const long wait = left < kMost ? left : kMost;
  system.tv_nsec += wait;
  if (system.tv_nsec >= kSecond) {
    system.tv_nsec -= kSecond;
    ++system.tv_sec;
  }
  const int status = pthread_cond_timedwait(condition, mutex, &system);
  return status == ETIMEDOUT && left > wait ? 0 : status;  // woken for nothing, as conditions may be
}

}  // extern "C"

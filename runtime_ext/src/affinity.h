// Which core a thread runs on.
#pragma once

#include <sched.h>

#include <climits>

namespace flexcomp {

inline void PinThisThread(int cpu) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof(set), &set);  // a core that does not exist is a wish not granted
}

// How many cores the calling thread may run on; INT_MAX where the system does not say.
inline int AllowedCpus() noexcept {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : INT_MAX;
}

// Pins the calling thread for a while; its owner's choice comes back afterwards.
class ScopedPin {
 public:
  explicit ScopedPin(int cpu) noexcept : active_(cpu >= 0 && ::sched_getaffinity(0, sizeof(before_), &before_) == 0) {
    if (active_) PinThisThread(cpu);
  }
  ~ScopedPin() {
    if (active_) ::sched_setaffinity(0, sizeof(before_), &before_);
  }
  ScopedPin(const ScopedPin&) = delete;
  ScopedPin& operator=(const ScopedPin&) = delete;

 private:
  cpu_set_t before_;
  bool active_;
};

}  // namespace flexcomp

// A number that one thread raises and another waits for.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.h"

namespace flexcomp {

// Tells the core that this is a spin loop.
inline void CpuRelax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield");
#endif
}

class Counter {
 public:
  // Waiting threads look `spins` times before sleeping.
  explicit Counter(int spins = kSpins) noexcept : spins_(spins) {}
  // For the waits that begin later.
  void SpinFor(int spins) noexcept { spins_.store(spins, std::memory_order_relaxed); }

  uint32_t Get() const noexcept { return value_.load(std::memory_order_acquire); }

  // Everything written before is visible to threads that see the value.
  void Set(uint32_t value) noexcept {
    // Either this thread sees that another one is going to sleep, or that one sees the value: both write before
    // reading, in one order for all. The standard library counts sleepers too, but for many atomics together: a loader
    // that sleeps would cost every step of the others a system call.
    value_.store(value, std::memory_order_seq_cst);
    WakeUp();
  }
  void Add() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    WakeUp();
  }
  // Several threads may change the value.
  template <typename Change>
  void Update(const Change& change) noexcept {
    uint32_t seen = Get();
    while (!value_.compare_exchange_weak(seen, change(seen), std::memory_order_seq_cst)) continue;
    WakeUp();
  }

  // All return the first value seen that fits. Waiting threads spin for a moment, since most waits are short, then
  // sleep.
  uint32_t WaitAtLeast(uint32_t bound) const noexcept {
    return WaitFor([bound](uint32_t value) { return value >= bound; });
  }
  uint32_t WaitOther(uint32_t old) const noexcept {
    return WaitFor([old](uint32_t value) { return value != old; });
  }
  void WaitEqual(uint32_t wanted) const noexcept {
    WaitFor([wanted](uint32_t value) { return value == wanted; });
  }

  template <typename Fits>
  uint32_t WaitFor(const Fits& fits) const noexcept {
    return WaitFor(fits, [] { return false; });
  }
  // Calls meanwhile() again and again while spinning, and when the value has changed; goes on spinning as long as that
  // returns true.
  template <typename Fits, typename Meanwhile>
  uint32_t WaitFor(const Fits& fits, const Meanwhile& meanwhile) const noexcept {
    for (;;) {
      for (int spin = 0, spins = spins_.load(std::memory_order_relaxed); spin < spins; ++spin) {
        if (const uint32_t value = Get(); fits(value)) return value;
        if (meanwhile())
          spin = 0;
        else
          CpuRelax();
      }
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      for (bool helped = false; !helped;) {
        const uint32_t value = value_.load(std::memory_order_seq_cst);
        if (fits(value)) {
          sleepers_.fetch_sub(1, std::memory_order_relaxed);
          return value;
        }
        helped = meanwhile();
        if (!helped) value_.wait(value, std::memory_order_seq_cst);
      }
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

 private:
  void WakeUp() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) value_.notify_all();
  }

  Atomic<int> spins_;
  alignas(64) Atomic<uint32_t> value_{0};
  mutable Atomic<uint32_t> sleepers_{0};
};

}  // namespace flexcomp

// A count that one thread advances and others wait for; it goes on modulo 2^30, and may be stopped.
#pragma once

#include <cstdint>

#include "base/counter.h"

namespace flexcomp {

class Progress {
 public:
  void SpinFor(int spins) noexcept { value_.SpinFor(spins); }

  uint32_t count() const noexcept { return value_.Get() >> kBits; }
  bool stopped() const noexcept { return (value_.Get() & kStopped) != 0; }
  bool Reached(uint32_t count) const noexcept { return Reaches(value_.Get(), count); }

  // Of the thread that advances. A stopped count stays stopped.
  void Advance(uint32_t count) noexcept {
    value_.Update([count](uint32_t value) { return count << kBits | (value & (kStopped | kWoken)); });
  }
  // Sleeping threads wake up and look for work.
  void Wake() noexcept {
    value_.Update([](uint32_t value) { return value ^ kWoken; });
  }
  // Ends all waits; any thread may call it.
  void Stop() noexcept {
    value_.Update([](uint32_t value) { return value | kStopped; });
  }
  // While nobody waits.
  void GoOn() noexcept {
    value_.Update([](uint32_t value) { return value & ~kStopped; });
  }

  // Calls meanwhile() as Counter does. False: stopped before the count was reached.
  template <typename Meanwhile>
  bool Await(uint32_t count, const Meanwhile& meanwhile) const noexcept {
    return Reaches(value_.WaitFor([count](uint32_t value) { return Reaches(value, count) || (value & kStopped) != 0; }, meanwhile), count);
  }
  bool Await(uint32_t count) const noexcept {
    return Await(count, [] { return false; });
  }

 private:
  static constexpr int kBits = 2;
  static constexpr uint32_t kStopped = 1, kWoken = 2;

  static bool Reaches(uint32_t value, uint32_t count) noexcept {
    return static_cast<int32_t>((value & ~(kStopped | kWoken)) - (count << kBits)) >= 0;
  }

  Counter value_;
};

}  // namespace flexcomp

// When the steps and loads of an inference ran.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace flexcomp {

// Nanoseconds of the monotonic clock.
inline int64_t MonotonicNs() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double SecondsOf(int64_t ns) noexcept { return static_cast<double>(ns) * 1e-9; }

struct Span {
  int64_t begin = 0, end = 0;  // MonotonicNs; both 0: did not happen
};

// Of one load, without the waiting before them.
struct LoadSpans {
  Span read, prepare;
};

// One inference. The steps' and the loads' threads each write spans of their own, into memory that is there before.
struct Trace {
  size_t rung = 0;
  Span whole;
  std::vector<Span> steps;  // without the waiting before them
  std::vector<LoadSpans> loads;  // pinned ones that were resident did not happen

  void Clear(size_t new_rung, size_t step_count, size_t load_count) {
    rung = new_rung;
    whole = {};
    steps.assign(step_count, {});
    loads.assign(load_count, {});
  }
};

}  // namespace flexcomp

// Whether kernels leave the loader a core of their own, where they could occupy all of them.
#pragma once

#include <chrono>

namespace flexcomp {

// Without it the loader waits for a core while kernels have all: an inference that waits for its loads becomes slower. One that
// hardly waits computes faster with all. Which of the two it is shows while it runs, and depends on the storage.
class LoaderCore {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // For one inference, with the seconds that it has waited for loads so far. At first kernels leave the core.
  LoaderCore(Time now, double stall_s) noexcept : from_(now), stall_from_(stall_s) {}
  bool Wanted(Time now, double stall_s) noexcept {
    const std::chrono::duration<double> seconds = now - from_;
    if (seconds < kLook) return wanted_;
    const double waited = (stall_s - stall_from_) / seconds.count();
    // With one core more, kernels take no less than half the time: what they would gain is lost once half the time is waited.
    wanted_ = waited > (wanted_ ? 0.1 : 0.5);
    from_ = now;
    stall_from_ = stall_s;
    return wanted_;
  }

 private:
  static constexpr std::chrono::milliseconds kLook{10};  // the system lets others have a core for some milliseconds

  bool wanted_ = true;
  Time from_;
  double stall_from_;
};

}  // namespace flexcomp

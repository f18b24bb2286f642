// Statistics of a pool's models while serving. Times in seconds, of any one clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace flexcomp {

// How often something happens, as an average that forgets.
class RateEstimate {
 public:
  // Counts events from `now` on.
  explicit RateEstimate(double now) noexcept : from_(now) {}

  void Note(double now) noexcept {
    if (!begun_) begun_ = now;
    count_ = CountAt(now) + 1;
    at_ = now;
  }

  // In a second; nothing before enough has been seen.
  std::optional<double> PerSecond(double now) const noexcept {
    if (!begun_ || now - *begun_ < kLeast) return std::nullopt;
    // A window that is not full yet counts by its filled part.
    return CountAt(now) / (kWindow * (1 - std::exp((*begun_ - now) / kWindow)));
  }

  // The rate to expect: at first a rate like any other, but lower the longer nothing happens.
  double Likely(double now) const noexcept {
    const double unseen = begun_ ? kUnknown : kUnknown * std::exp(std::min(0.0, from_ - now) / kWindow);
    return std::max(PerSecond(now).value_or(unseen), kRare);
  }

 private:
  static constexpr double kWindow = 10, kLeast = 2;
  static constexpr double kUnknown = 1, kRare = 1e-3;  // in a second

  double CountAt(double now) const noexcept { return count_ * std::exp(std::min(0.0, at_ - now) / kWindow); }

  double from_;
  std::optional<double> begun_;  // when the first event was seen
  double count_ = 0, at_ = 0;
};

// Which shapes requests have, as an average that forgets. Before the first request all have the first shape, the largest.
class ShapeMix {
 public:
  explicit ShapeMix(size_t shapes) : parts_(shapes) { parts_.at(0) = 1; }

  void Note(size_t shape) noexcept {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i] += ((i == shape) - parts_[i]) / kRequests;
  }

  // Of seconds in each shape.
  double Mean(const std::vector<double>& seconds) const noexcept {
    return std::inner_product(parts_.begin(), parts_.end(), seconds.begin(), 0.0);
  }

 private:
  static constexpr double kRequests = 16;

  std::vector<double> parts_;
};

// The time of inferences compared with the prediction of plans: the average and the deviation (Jacobson and Karels,
// Congestion Avoidance and Control, appendix A).
class LatencyEstimate {
 public:
  void Note(double predicted, double took) noexcept {
    if (predicted <= 0) return;
    const double ratio = took / predicted;
    if (!noted_) ratio_ = ratio, apart_ = ratio / 4;
    noted_ = true;
    // One that was stopped for a second says little of the next.
    const double most = kMostApart * std::max(apart_, ratio_ / 16);
    const double error = std::clamp(ratio - ratio_, -most, most);
    ratio_ += error / 8;
    apart_ += (std::abs(error) - apart_) / 4;
  }

  bool noted() const noexcept { return noted_; }  // whether there is more to go by than the plan
  double ratio() const noexcept { return ratio_; }
  double Likely(double predicted) const noexcept { return ratio_ * predicted; }
  // Hardly any inference takes longer.
  double Safe(double predicted) const noexcept { return (ratio_ + kDeviations * apart_) * predicted; }

 private:
  static constexpr double kDeviations = 4, kMostApart = 4;

  bool noted_ = false;
  double ratio_ = 1, apart_ = 0.25;
};

}  // namespace flexcomp

// Down at once; up only after a larger budget has fitted with a margin for a while.
#pragma once

#include <cstdint>
#include <optional>

#include "watch/memory_source.h"

namespace flexcomp {

class Hysteresis {
 public:
  explicit Hysteresis(double patience_s) noexcept : patience_s_(patience_s) {}

  // The budget to use from `now_s` on, where `allowed` bytes are.
  uint64_t Next(const Budgeted& now, uint64_t allowed, double now_s) noexcept {
    uint64_t fits = now.budgets.front(), roomy = now.used;
    for (const uint64_t budget : now.budgets) {
      if (budget <= allowed) fits = budget;
      if (static_cast<double>(budget) * kGrowthMargin <= static_cast<double>(allowed)) roomy = budget;
    }
    if (fits < now.used || roomy <= now.used) {
      fits_since_.reset();
      return fits < now.used ? fits : now.used;
    }
    if (!fits_since_) fits_since_ = now_s;
    return now_s - *fits_since_ >= patience_s_ ? roomy : now.used;
  }

  // Whatever fits has to fit for a while once more.
  void StartAgain() noexcept { fits_since_.reset(); }

 private:
  const double patience_s_;
  std::optional<double> fits_since_;
};

}  // namespace flexcomp

// Shares of several models under one budget: which rung of its ladder each of them gets.
//
// A rung is two ranges of bytes: kept ones, which a model has to itself, and working ones, which hold nothing between two
// inferences. Models of one lane take turns, so a lane needs the working bytes of its largest rung only:
//
//   sum over lanes of max(working) + sum over models of kept <= budget
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flexcomp {

constexpr uint64_t kMostShareBytes = uint64_t{1} << 43;  // of a range: all sums are exact as doubles

struct ShareRung {
  uint64_t working = 0;  // bytes
  uint64_t kept = 0;     // bytes
  double seconds = 0;    // predicted, of one inference
};

struct ShareModel {
  std::vector<ShareRung> rungs;  // in any order
  double weight = 1;             // the cost of a second of the model: its rate times its urgency
  uint32_t lane = 0;             // less than the number of models
};

struct Shares {
  std::vector<uint32_t> rungs;  // of each model; empty: the budget is less than `least`
  uint64_t nbytes = 0;          // bytes of all together
  double cost = 0;              // sum of weight * seconds
  uint64_t least = 0;           // bytes: the smallest budget that shares can be made of
  uint64_t points = 0;          // partial choices that were examined: a measure of the work
};

// Throws InputError unless there are models, each with rungs, with sizes and times that can be added up.
void CheckShareModels(std::span<const ShareModel> models);

// The shares of least cost; of several, those of fewest bytes. Costs that differ by less than rounding does, 1e-12 of
// the whole, count as equal. Throws ExecutionError where the search would take more memory than a device has for that.
Shares ShareExactly(std::span<const ShareModel> models, uint64_t budget);

// SwapNet's rule (equation 1 of its section 6.2.2): every model has bytes of its own, including working bytes, for the
// larger part in proportion to the bytes of its fastest rung, for the n-th part in proportion to weight * seconds /
// bytes. `rungs` are the fastest that fit there.
Shares ShareBySwapNet(std::span<const ShareModel> models, uint64_t budget);

}  // namespace flexcomp

// Which segments stay in the arena between inferences (flexcomp/plan, pin.py).
#pragma once

#include <vector>

#include "problem.h"

namespace flexcomp::planner {

// In the order of PINS.
enum class Pins : int64_t {
  kEvenly,
  kInOrder,
  kSmall,
  kShared
};

struct PinTask {
  std::vector<int64_t> pages;   // of each step's segment
  std::vector<double> seconds;  // of each step
  std::vector<int64_t> room;    // pages that the loader can be ahead, at each step
  int64_t capacity = 0;         // pages
  double bandwidth = 0;         // pages per second
  std::vector<double> costs;    // pages that could be read in the time that each step's load takes
  std::vector<double> kept;     // the same for the work that the loader still has for each pinned step
  std::vector<size_t> owner;    // of steps with the same weights the first, of others the step itself
};

// One flag per step, for owners only: shared weights stay for all their steps.
std::vector<char> ChoosePins(Pins pins, PinTask task);

}  // namespace flexcomp::planner

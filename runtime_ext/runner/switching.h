// Budgets switched at random while other threads run inferences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace flexcomp::runner {

struct SwitchTest {
  std::vector<uint64_t> budgets;  // to choose from, bytes
  int switches = 0;
  int callers = 1;  // threads that run one inference after the other
  uint64_t seed = 0;
  double pause_ms = 0;                         // at most so long between two switches
  std::function<void(uint64_t)> set_budget;     // called by one thread
  std::function<bool()> run;                   // called by the callers; whether the outputs were right
};

struct Switch {
  size_t budget;  // index in budgets
  double milliseconds;
  uint64_t rss;  // after the switch, bytes
};

struct SwitchReport {
  std::vector<Switch> switches;
  uint64_t runs = 0, wrong = 0;
};

// Rethrows the error of a caller, after all have ended.
SwitchReport SwitchWhileRunning(const SwitchTest& test);

}  // namespace flexcomp::runner

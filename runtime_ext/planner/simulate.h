// The timeline of a plan, from predicted times (explained in flexcomp/plan/simulate.py).
#pragma once

#include "problem.h"

namespace flexcomp::planner {

// Waits that never end: `step` waits for a load that waits for `after` steps.
struct Waits {
  int64_t step, after;
};

// Seconds of an inference in the steady state; false if the waits never end.
bool Simulate(const Problem& problem, const Plan& plan, double* latency, Waits* waits);

}  // namespace flexcomp::planner

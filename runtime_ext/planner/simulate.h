// The timeline of a plan, from predicted times (flexcomp/plan/simulate.py, where it is explained).
#pragma once

#include "problem.h"

namespace flexcomp::planner {

// That never end: the step that waits, for a load that waits for so many steps.
struct Waits {
  int64_t step, after;
};

// Seconds of an inference in the steady state; false if the waits never end.
bool Simulate(const Problem& problem, const Plan& plan, double* latency, Waits* waits);

}  // namespace flexcomp::planner

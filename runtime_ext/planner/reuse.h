// Reuse distances of places in the arena (flexcomp/plan, reuse.py).
#pragma once

#include <vector>

#include "problem.h"

namespace flexcomp::planner {

// Per segment that is not pinned, in their order: bytes loaded since a byte of its place was written, in the mean.
std::vector<double> ReuseDistances(const std::vector<Segment>& segments);

}  // namespace flexcomp::planner

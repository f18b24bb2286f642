// One point of the search: acts 2 to 5 of flexcomp/plan's best.py, and what the simulator says of the plan.
#pragma once

#include <vector>

#include "layout.h"
#include "pin.h"
#include "preload.h"
#include "problem.h"

namespace flexcomp::planner {

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct Choice {
  int64_t arena, core;  // pages
  int64_t in_flight;
  Pins pins;
  int64_t joined;  // bytes
  Chooser chooser;
  int64_t within;  // pages
};

struct Candidate {
  Plan plan;
  int64_t arena = 0;   // bytes
  int64_t effort = 0;  // steps before neighbouring pinned ones were merged
};

// False where something finds no place.
bool MakeCandidate(const Problem& problem, const Layout& layout, const Choice& choice, Candidate* candidate);

}  // namespace flexcomp::planner

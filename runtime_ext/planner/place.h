// Greedy offset calculation (flexcomp/plan/placement, offsets.py).
#pragma once

#include <vector>

#include "problem.h"

namespace flexcomp::planner {

struct Records {
  std::vector<int64_t> nbytes, align;
  std::vector<int64_t> ends, neighbours;  // record r meets neighbours[ends[r]] to neighbours[ends[r + 1] - 1]
};

// Places `count` records in `order`, each in the smallest sufficient gap between its predecessors; other offsets are -1.
// Returns the bytes used in all.
int64_t PlaceInOrder(const Records& records, int64_t count, const int64_t* order, int64_t* offsets);

}  // namespace flexcomp::planner

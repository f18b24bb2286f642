// The inner loops of the published strategies (flexcomp/plan/published: flexnn.py, swapnet.py).
#pragma once

#include <vector>

#include "page_set.h"
#include "problem.h"

namespace flexcomp::planner {

// FlexNN's Algorithm 1, step by step: weights at the place with the earliest load, then scratch. All arrays have an entry per
// step; `weights` and `scratch` are pages, 0 for none. Returns the step that finds no place, or -1.
int64_t FlexNn(std::vector<PageSet>* free, const int64_t* weights, const int64_t* scratch, int64_t* after, int64_t* first,
               int64_t* scratch_first);

// SwapNet's partition of `layers` layers into blocks, two in a row within `room` bytes, for the least latency: the starts of
// the blocks. `nbytes_upto` and `seconds_upto` are sums over the first layers. Empty if no partition fits.
std::vector<int64_t> Partition(int64_t layers, const int64_t* nbytes_upto, const double* seconds_upto, double single_s,
                               double bandwidth, int64_t room);

}  // namespace flexcomp::planner

// How layers are cut into steps (flexcomp/plan, slicing.py).
#pragma once

#include <vector>

#include "problem.h"

namespace flexcomp::planner {

struct FileRange {
  int64_t source, nbytes;  // multiples of kPage
};

FileRange FileRangeOf(const Weights& weights, int64_t first, int64_t count);

// Pages of the data section from which `count` prepared blocks are made.
int64_t StoredPages(const Stored& stored, int64_t first, int64_t count);

int64_t FinestSegment(const Weights& weights);

// Steps such that every segment of layer l fits in limits[l] bytes, with as few slices as possible. False: a block does not.
bool SliceToRoom(const Problem& problem, const std::vector<int64_t>& limits, std::vector<Step>* steps);

}  // namespace flexcomp::planner

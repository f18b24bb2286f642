// Lower bounds on the latency of an inference (class Cuts of flexcomp/plan/bound.py, where they are explained).
#pragma once

#include <cstdint>

namespace flexcomp::planner {

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct CutRates {
  double bandwidth;  // bytes per second
  double helped;     // the part of a wait for loads that is saved by helping with them
  double computing;  // seconds of all layers
  double beside;     // seconds that cuts without layers behind them take longer
};

// `values` are rows of layers + 1: [i, k] is the bound of the cut before layer i with k layers behind it. `seconds_upto` and
// `nbytes_upto` are sums over the first so many layers of two inferences, `held` bytes in the arena at each cut.
void CutValues(int64_t layers, const double* seconds_upto, const double* nbytes_upto, const double* held,
               const CutRates& rates, double* values);

}  // namespace flexcomp::planner

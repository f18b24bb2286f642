// Lower bounds on the latency of an inference (class Cuts of flexcomp/plan/bound.py, where they are explained).
#pragma once

#include <cstdint>
#include <vector>

namespace flexcomp::planner {

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct CutRates {
  double bandwidth;  // bytes per second
  double helped;     // the part of a wait for loads that is saved by helping with them
  double delay;      // seconds by which a byte that does not fit delays computing
  double budget;     // bytes
};

// Sums over the first so many of the layers of two inferences, of an amount per layer.
void SumUp(int64_t layers, const double* amounts, std::vector<double>* upto);

// The values of one cut, with every number of layers behind it: the row of CutValues, and the largest of it.
double CutRow(int64_t layers, int64_t cut, const double* seconds_upto, const double* nbytes_upto, const double* held,
              const CutRates& rates, double* row);

// `values` are rows of layers + 1: [i, k] is the bound of the cut before layer i with k layers behind it. `seconds_upto` and
// `nbytes_upto` are those of SumUp, `held` bytes in the arena at each cut.
void CutValues(int64_t layers, const double* seconds_upto, const double* nbytes_upto, const double* held,
               const CutRates& rates, double* values);

// What a second and a byte more of each layer add to the sum of the cuts, weighed by `weights`, rows as of CutValues.
void CutPrices(int64_t layers, const double* weights, const double* seconds_upto, const double* nbytes_upto,
               const double* held, const CutRates& rates, double* per_second, double* per_byte);

}  // namespace flexcomp::planner

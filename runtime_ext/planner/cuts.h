// Lower bounds on the latency of an inference (explained in class Cuts of flexcomp/plan/bound.py).
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

// Sums of an amount per layer over the first layers of two inferences, for each number of layers.
void SumUp(int64_t layers, const double* amounts, std::vector<double>* upto);

// The values of one cut, with every number of layers after the cut: the row of CutValues, and its largest value.
double CutRow(int64_t layers, int64_t cut, const double* seconds_upto, const double* nbytes_upto, const double* held,
              const CutRates& rates, double* row);

// `values` are rows of layers + 1: [i, k] is the bound of the cut before layer i with k layers after. `seconds_upto` and
// `nbytes_upto` are sums of SumUp, `held` bytes in the arena at each cut.
void CutValues(int64_t layers, const double* seconds_upto, const double* nbytes_upto, const double* held,
               const CutRates& rates, double* values);

// The growth, per second and per byte of each layer, of the sum of the cuts weighted by `weights`, rows as in CutValues.
void CutPrices(int64_t layers, const double* weights, const double* seconds_upto, const double* nbytes_upto,
               const double* held, const CutRates& rates, double* per_second, double* per_byte);

}  // namespace flexcomp::planner

// The choice of kernels for a budget (explained in class _Descent of flexcomp/plan/mixture.py).
#pragma once

#include <cstdint>

#include "cuts.h"

namespace flexcomp::planner {

// Rows of `width` options per layer; only allowed ones are taken.
struct Options {
  int64_t layers, width;
  const double* seconds;
  const double* nbytes;
  const uint8_t* allowed;
};

// How the maximum of the cuts is softened: by a sum of powers 2^squarings of value / maximum, without parts below `negligible`.
struct Softness {
  int64_t squarings;
  double negligible;
};

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct Descent {
  int64_t rounds, starts, singles;
  double least, better;  // seconds of a bound that is worth improving; part of a cost that is an improvement
};

// Per layer the option that is taken.
void Mix(const Options& options, const double* held, const CutRates& rates, const Descent& descent, int64_t softnesses,
         const Softness* softness, int64_t* picks);

}  // namespace flexcomp::planner

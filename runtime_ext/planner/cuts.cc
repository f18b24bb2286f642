#include "cuts.h"

#include <algorithm>

namespace flexcomp::planner {

void CutValues(int64_t layers, const double* seconds_upto, const double* nbytes_upto, const double* held,
               const CutRates& rates, double* values) {
  for (int64_t cut = 0; cut < layers; ++cut) {
    const double* seconds = seconds_upto + cut;
    const double* nbytes = nbytes_upto + cut;
    double* row = values + cut * (layers + 1);
    for (int64_t behind = 0; behind <= layers; ++behind) {
      const double read = std::max(0.0, nbytes[behind] - nbytes[0] - held[cut]) / rates.bandwidth;
      const double computed = seconds[behind] - seconds[0];
      row[behind] = read - rates.helped * std::max(0.0, read - computed) + (rates.computing - computed);
    }
    row[0] += rates.beside;
  }
}

}  // namespace flexcomp::planner

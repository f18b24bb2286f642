#include "cuts.h"

#include <algorithm>

namespace flexcomp::planner {
namespace {

// Per layer the sum of the weights of the cuts before the layer. `starts` are sums of the weights of cuts at a layer, `ends` the
// negative changes of the sums at the end of the layers after a cut.
void Cover(int64_t layers, const std::vector<double>& starts, const std::vector<double>& ends, double* covered) {
  std::vector<double> sums(2 * layers);
  double sum = 0;
  for (int64_t at = 0; at < 2 * layers; ++at) {
    sum += at < layers ? ends[at] + starts[at] : ends[at];
    sums[at] = sum;
  }
  for (int64_t layer = 0; layer < layers; ++layer) covered[layer] = sums[layer] + sums[layers + layer];
}

}  // namespace

void SumUp(int64_t layers, const double* amounts, std::vector<double>* upto) {
  upto->assign(2 * layers + 1, 0.0);
  double sum = 0;
  for (int64_t at = 0; at < 2 * layers; ++at) {
    sum += amounts[at < layers ? at : at - layers];
    (*upto)[at + 1] = sum;
  }
}

double CutRow(int64_t layers, int64_t cut, const double* seconds_upto, const double* nbytes_upto, const double* held,
              const CutRates& rates, double* row) {
  const double computing = seconds_upto[layers], bandwidth = rates.bandwidth, helped = rates.helped, own = held[cut];
  const double* seconds = seconds_upto + cut;
  const double* nbytes = nbytes_upto + cut;
  for (int64_t behind = 0; behind <= layers; ++behind) {
    const double read = std::max(0.0, nbytes[behind] - nbytes[0] - own) / bandwidth;
    const double computed = seconds[behind] - seconds[0];
    row[behind] = read - helped * std::max(0.0, read - computed) + (computing - computed);
  }
  row[0] += rates.delay * std::max(0.0, nbytes_upto[layers] - rates.budget);
  double most[4] = {row[0], row[0], row[0], row[0]};  // no chain of comparisons that wait for each other
  int64_t behind = 0;
  for (; behind + 4 <= layers + 1; behind += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) most[lane] = std::max(most[lane], row[behind + lane]);
  }
  for (; behind <= layers; ++behind) most[0] = std::max(most[0], row[behind]);
  return std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
}

void CutValues(int64_t layers, const double* seconds_upto, const double* nbytes_upto, const double* held,
               const CutRates& rates, double* values) {
  for (int64_t cut = 0; cut < layers; ++cut)
    CutRow(layers, cut, seconds_upto, nbytes_upto, held, rates, values + cut * (layers + 1));
}

void CutPrices(int64_t layers, const double* weights, const double* seconds_upto, const double* nbytes_upto,
               const double* held, const CutRates& rates, double* per_second, double* per_byte) {
  std::vector<double> starts(layers), ends(2 * layers + 1), read_starts(layers), read_ends(2 * layers + 1);
  double beside = 0;
  for (int64_t cut = 0; cut < layers; ++cut) {
    const double* row = weights + cut * (layers + 1);
    beside += row[0];
    for (int64_t behind = 0; behind <= layers; ++behind) {
      if (row[behind] == 0.0) continue;
      const double read = std::max(0.0, nbytes_upto[cut + behind] - nbytes_upto[cut] - held[cut]) / rates.bandwidth;
      const double computed = seconds_upto[cut + behind] - seconds_upto[cut];
      const double weight = row[behind] * (1.0 - (read > computed ? rates.helped : 0.0));
      starts[cut] += weight;
      ends[cut + behind] -= weight;
      if (read > 0) {
        read_starts[cut] += weight;
        read_ends[cut + behind] -= weight;
      }
    }
  }
  const double delay = nbytes_upto[layers] > rates.budget ? rates.delay * beside : 0.0;
  Cover(layers, starts, ends, per_second);
  Cover(layers, read_starts, read_ends, per_byte);
  for (int64_t layer = 0; layer < layers; ++layer) {
    per_second[layer] = 1.0 - per_second[layer];
    per_byte[layer] = per_byte[layer] / rates.bandwidth + delay;
  }
}

}  // namespace flexcomp::planner

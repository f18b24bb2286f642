#include "mix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace flexcomp::planner {
namespace {

using Picks = std::vector<int64_t>;

// Some picks and their cuts.
struct Valued {
  Picks picks;
  std::vector<double> seconds_upto, nbytes_upto, values;
  std::vector<double> tops;  // the largest value of each cut
  double top = 0;            // of all
};

class Descending {
 public:
  Descending(const Options& options, const double* held, const CutRates& rates, const Descent& descent)
      : options_(options), held_(held), rates_(rates), descent_(descent) {}

  // False, with not all values, as soon as one is `limit` or more: then the softened maximum is, too.
  bool Value(const Picks& picks, Valued* valued, double limit = std::numeric_limits<double>::infinity()) {
    const int64_t layers = options_.layers;
    row_.resize(layers);
    for (const auto& [amounts, upto] : {std::pair{options_.seconds, &valued->seconds_upto}, {options_.nbytes, &valued->nbytes_upto}}) {
      for (int64_t layer = 0; layer < layers; ++layer) row_[layer] = amounts[layer * options_.width + picks[layer]];
      SumUp(layers, row_.data(), upto);
    }
    valued->picks = picks;
    valued->values.resize(layers * (layers + 1));
    valued->tops.resize(layers);
    for (int64_t turn = 0; turn < layers; ++turn) {
      const int64_t cut = first_ + turn < layers ? first_ + turn : first_ + turn - layers;
      valued->tops[cut] = CutRow(layers, cut, valued->seconds_upto.data(), valued->nbytes_upto.data(), held_, rates_,
                                 valued->values.data() + cut * (layers + 1));
      if (valued->tops[cut] >= limit) {
        first_ = cut;
        return false;
      }
    }
    valued->top = *std::max_element(valued->tops.begin(), valued->tops.end());
    return true;
  }

  // The softened maximum; `weights`, if not null, receives the parts of the cuts in the maximum.
  static double Cost(const Valued& valued, const Softness& softness, std::vector<double>* weights) {
    if (valued.top == 0.0) return 0.0;
    const double least = softness.negligible * valued.top;
    double sum = 0;
    if (weights) weights->assign(valued.values.size(), 0.0);
    const size_t width = valued.values.size() / valued.tops.size();
    for (size_t cut = 0; cut < valued.tops.size(); ++cut) {
      if (valued.tops[cut] < least) continue;
      for (size_t at = cut * width; at < (cut + 1) * width; ++at) {
        if (valued.values[at] < least) continue;
        double part = valued.values[at] / valued.top;
        for (int64_t turn = 0; turn < softness.squarings; ++turn) part *= part;
        sum += part;
        if (weights) (*weights)[at] = part;
      }
    }
    if (weights) {
      for (double& weight : *weights) weight = weight == 0.0 ? 0.0 : weight / sum;
    }
    for (int64_t turn = 0; turn < softness.squarings; ++turn) sum = std::sqrt(sum);
    return valued.top * sum;
  }

  // Changes `now` to picks whose softened cost is less; false if none were found.
  bool Improve(const Softness& softness, Valued* now) {
    const int64_t layers = options_.layers, width = options_.width;
    const double enough = Cost(*now, softness, &weights_) * (1.0 - descent_.better);
    std::vector<double> per_second(layers), per_byte(layers), gains(layers);
    CutPrices(layers, weights_.data(), now->seconds_upto.data(), now->nbytes_upto.data(), held_, rates_, per_second.data(),
              per_byte.data());
    Picks cheapest(layers), movers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      double least = std::numeric_limits<double>::infinity(), own = least;
      for (int64_t option = 0; option < width; ++option) {
        const int64_t at = layer * width + option;
        if (!options_.allowed[at]) continue;
        const double price = per_second[layer] * options_.seconds[at] + per_byte[layer] * options_.nbytes[at];
        if (option == now->picks[layer]) own = price;
        if (price < least) {
          least = price;
          cheapest[layer] = option;
        }
      }
      gains[layer] = own - least;
      if (gains[layer] > 0) movers.push_back(layer);
    }
    std::stable_sort(movers.begin(), movers.end(), [&](int64_t one, int64_t other) { return gains[one] > gains[other]; });
    const auto better = [&](const int64_t* first, const int64_t* last) {
      Picks moved = now->picks;
      for (; first != last; ++first) moved[*first] = cheapest[*first];
      if (!Value(moved, &tried_, enough) || !(Cost(tried_, softness, nullptr) < enough)) return false;
      std::swap(*now, tried_);
      return true;
    };
    const int64_t* first = movers.data();
    for (int64_t size = movers.size(); size; size = size * 2 / 3) {
      if (better(first, first + size)) return true;
    }
    for (int64_t one = 1; one < std::min<int64_t>(movers.size(), descent_.singles); ++one) {
      if (better(first + one, first + one + 1)) return true;
    }
    return false;
  }

  // The best of all picks on the way from `start`, and their bound.
  std::pair<double, Picks> Descend(const Picks& start, int64_t softnesses, const Softness* softness) {
    Valued now;
    Value(start, &now);
    Valued best = now;
    for (int64_t turn = 0; turn < softnesses; ++turn) {
      for (int64_t round = 0; round < descent_.rounds && best.top > descent_.least; ++round) {
        if (!Improve(softness[turn], &now)) break;
        if (now.top < best.top) best = now;
      }
      now = best;
    }
    return {best.top, best.picks};
  }

 private:
  const Options& options_;
  const double* held_;
  const CutRates& rates_;
  const Descent& descent_;
  std::vector<double> row_, weights_;
  Valued tried_;
  int64_t first_ = 0;  // the cut that was too large the last time: likely the next time, too
};

}  // namespace

void Mix(const Options& options, const double* held, const CutRates& rates, const Descent& descent, int64_t softnesses,
         const Softness* softness, int64_t* picks) {
  Descending descending(options, held, rates, descent);
  std::vector<std::pair<double, Picks>> starts;  // with their bounds
  Valued valued;
  for (int64_t column = 0; column < options.width; ++column) {
    Picks picks(options.layers, 0);
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      for (int64_t option = 0; option <= column; ++option) {
        if (options.allowed[layer * options.width + option]) picks[layer] = option;
      }
    }
    if (std::any_of(starts.begin(), starts.end(), [&](const auto& other) { return other.second == picks; })) continue;
    descending.Value(picks, &valued);
    starts.emplace_back(valued.top, std::move(picks));
  }
  std::stable_sort(starts.begin(), starts.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::pair<double, Picks> best{std::numeric_limits<double>::infinity(), starts[0].second};
  for (int64_t turn = 0; turn < std::min<int64_t>(starts.size(), descent.starts); ++turn) {
    std::pair<double, Picks> found = descending.Descend(starts[turn].second, softnesses, softness);
    if (found.first < best.first) best = std::move(found);
  }
  std::copy(best.second.begin(), best.second.end(), picks);
}

}  // namespace flexcomp::planner

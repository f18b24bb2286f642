// SwapNet's rule for shares, to compare with.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "pool/shares.h"

namespace flexcomp {
namespace {

uint64_t Bytes(const ShareRung& rung) { return rung.working + rung.kept; }

// The part of the budget that each model gets, where not all can be fastest.
std::vector<double> Fractions(std::span<const ShareModel> models, const std::vector<const ShareRung*>& fastest) {
  const double n = static_cast<double>(models.size());
  double demand = 0, score = 0;
  std::vector<double> scores, fractions;
  for (size_t i = 0; i < models.size(); ++i) {
    const double bytes = static_cast<double>(std::max<uint64_t>(Bytes(*fastest[i]), 1));
    demand += bytes;
    score += scores.emplace_back(models[i].weight * fastest[i]->seconds / bytes);
  }
  for (size_t i = 0; i < models.size(); ++i) {
    const double bytes = static_cast<double>(std::max<uint64_t>(Bytes(*fastest[i]), 1));
    fractions.push_back(bytes / demand * (1 - 1 / n) + (score > 0 ? scores[i] / score : 1 / n) / n);
  }
  return fractions;
}

}  // namespace

Shares ShareBySwapNet(std::span<const ShareModel> models, uint64_t budget) {
  CheckShareModels(models);
  std::vector<const ShareRung*> fastest, smallest;
  uint64_t all = 0;
  for (const ShareModel& model : models) {
    const auto by_time = [](const ShareRung& rung) { return std::tuple(rung.seconds, Bytes(rung)); };
    fastest.push_back(&*std::ranges::min_element(model.rungs, {}, by_time));
    smallest.push_back(&*std::ranges::min_element(model.rungs, {}, Bytes));
    all += Bytes(*fastest.back());
  }
  const std::vector<double> fractions = Fractions(models, fastest);
  const auto share = [&](size_t model, uint64_t of) {
    return of >= all ? Bytes(*fastest[model]) : static_cast<uint64_t>(fractions[model] * static_cast<double>(of));
  };

  Shares shares;
  for (size_t i = 0; i < models.size(); ++i) {
    const double needed = static_cast<double>(Bytes(*smallest[i])) / fractions[i];
    uint64_t least = needed < static_cast<double>(all) ? static_cast<uint64_t>(needed) : all;
    while (share(i, least) < Bytes(*smallest[i])) ++least;  // a byte or two, by rounding
    shares.least = std::max(shares.least, least);
  }
  if (budget < shares.least) return shares;
  for (size_t i = 0; i < models.size(); ++i) {
    const uint64_t most = share(i, budget);
    const ShareRung* best = smallest[i];
    for (const ShareRung& rung : models[i].rungs)
      if (Bytes(rung) <= most && std::tuple(rung.seconds, Bytes(rung)) < std::tuple(best->seconds, Bytes(*best))) best = &rung;
    shares.rungs.push_back(static_cast<uint32_t>(best - models[i].rungs.data()));
    shares.nbytes += Bytes(*best);
    shares.cost += models[i].weight * best->seconds;
    shares.points += models[i].rungs.size();
  }
  return shares;
}

}  // namespace flexcomp

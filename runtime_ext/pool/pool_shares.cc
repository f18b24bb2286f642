// Which rung each model of a pool should be on, and when that changes.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {
namespace {

// Within `keep`; the ones that keep least, where none is.
std::vector<uint32_t> Allowed(const std::vector<ShareRung>& ladder, uint64_t keep) {
  const uint64_t most = std::max(keep, std::ranges::min_element(ladder, {}, &ShareRung::kept)->kept);
  std::vector<uint32_t> rungs;
  for (uint32_t i = 0; i < ladder.size(); ++i)
    if (ladder[i].kept <= most) rungs.push_back(i);
  return rungs;
}

// Exactly, or where that would take too much, of every second rung, of every fourth, and so on; the smallest always count.
Shares ShareSoon(std::vector<ShareModel>& models, std::vector<std::vector<uint32_t>>& kept, uint64_t budget) {
  for (;;) {
    try {
      return ShareExactly(models, budget);
    } catch (const tvm::ffi::Error& error) {
      if (error.kind() != "ExecutionError" || std::ranges::all_of(models, [](const auto& model) { return model.rungs.size() < 3; })) throw;
    }
    for (size_t i = 0; i < models.size(); ++i) {
      const auto thin = [](auto& all) {
        for (size_t j = 1; 2 * j < all.size(); ++j) all[j] = all[2 * j];
        all.resize((all.size() + 1) / 2);
      };
      thin(models[i].rungs);
      thin(kept[i]);
    }
  }
}

}  // namespace

double Pool::DeadlineOf(const Network& network) const {
  double deadline = INFINITY;
  for (const auto& [number, model] : models_)
    if (model.network == &network) deadline = std::min(deadline, model.options.deadline_s.value_or(INFINITY));
  return deadline;
}

std::vector<ShareModel> Pool::ShareModels(double now, bool meet_deadlines, std::vector<std::vector<uint32_t>>& kept) const {
  std::vector<ShareModel> models;
  kept.clear();
  for (const auto& network : networks_) {
    ShareModel shared;
    shared.weight = 0;
    shared.lane = network->lane;
    if (!network->broken.empty()) {  // holds nothing, and will not
      shared.rungs.push_back({});
      kept.push_back({0});
      models.push_back(std::move(shared));
      continue;
    }
    uint64_t keep = UINT64_MAX;
    const double deadline = DeadlineOf(*network);
    for (const auto& [number, model] : models_) {
      if (model.network != network.get()) continue;
      shared.weight += RateOf(model, now) * model.options.urgency;
      keep = std::min(keep, model.options.keep);
    }
    std::vector<uint32_t> rungs = Allowed(network->ladder(), keep);
    const auto late = [&](uint32_t rung) { return network->latency.Safe(network->ladder()[rung].seconds) > deadline; };
    if (meet_deadlines && !std::ranges::all_of(rungs, late)) std::erase_if(rungs, late);
    for (const uint32_t rung : rungs) {
      shared.rungs.push_back(network->ladder()[rung]);
      shared.rungs.back().seconds *= network->latency.ratio();
    }
    kept.push_back(std::move(rungs));
    models.push_back(std::move(shared));
  }
  // Lanes are numbered below the number of models.
  std::vector<uint32_t> used;
  for (ShareModel& model : models) {
    const auto found = std::ranges::find(used, model.lane);
    const auto number = static_cast<uint32_t>(found - used.begin());
    if (found == used.end()) used.push_back(model.lane);
    model.lane = number;
  }
  return models;
}

std::optional<std::vector<uint32_t>> Pool::FindShares(uint64_t budget, double now, uint64_t& least) const {
  std::vector<std::vector<uint32_t>> kept;
  for (const bool meet_deadlines : {true, false}) {
    std::vector<ShareModel> models = ShareModels(now, meet_deadlines, kept);
    Shares shares = options_.by_swapnet ? ShareBySwapNet(models, budget) : ShareSoon(models, kept, budget);
    least = shares.least;
    if (shares.rungs.empty()) continue;
    for (size_t i = 0; i < kept.size(); ++i) shares.rungs[i] = kept[i][shares.rungs[i]];
    return std::move(shares.rungs);
  }
  return std::nullopt;
}

std::vector<uint32_t> Pool::SharesOf(uint64_t budget) const {
  if (networks_.empty()) return {};
  uint64_t least = 0;
  auto rungs = FindShares(budget, Now(), least);
  if (!rungs)
    RaiseError("BudgetError", "a budget of ", budget, " bytes is too small for ", networks_.size(),
               networks_.size() > 1 ? " models: the smallest that is enough for them is " : " model: the smallest that is enough is ",
               least, " bytes");
  return *std::move(rungs);
}

std::vector<uint32_t> Pool::SharesWith(const Model& model, std::shared_ptr<Network> fresh) {
  const bool is_fresh = fresh != nullptr;
  if (is_fresh) networks_.push_back(std::move(fresh));
  const auto added = models_.emplace(next_model_, model).first;
  const auto take_back = [&] {
    models_.erase(added);
    if (is_fresh) networks_.pop_back();
  };
  try {
    std::vector<uint32_t> targets = SharesOf(budget_);
    take_back();
    return targets;
  } catch (...) {
    take_back();
    throw;
  }
}

void Pool::Use(const std::vector<uint32_t>& targets) {
  for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->target = targets[i];
  ++reshared_;
  shared_at_ = Now();
}

void Pool::ShareAnew() {
  constexpr double kEvery = 1, kHorizon = 10, kLeastGain = 0.02;
  const double now = Now();
  if (now - shared_at_ < kEvery || networks_.empty()) return;
  shared_at_ = now;
  uint64_t least = 0;
  const auto rungs = FindShares(budget_, now, least);
  if (!rungs) return;
  double before = 0, after = 0, moving = 0;
  int late_before = 0, late_after = 0;
  std::vector<std::vector<uint32_t>> kept;
  const std::vector<ShareModel> models = ShareModels(now, false, kept);
  for (size_t i = 0; i < networks_.size(); ++i) {
    const Network& network = *networks_[i];
    if (!network.broken.empty()) continue;
    const ShareRung &used = network.ladder()[network.target], &found = network.ladder()[(*rungs)[i]];
    const double cost = models[i].weight * network.latency.ratio(), deadline = DeadlineOf(network);
    before += cost * used.seconds;
    after += cost * found.seconds;
    late_before += network.latency.Safe(used.seconds) > deadline;
    late_after += network.latency.Safe(found.seconds) > deadline;
    if ((*rungs)[i] != network.target) moving += static_cast<double>(found.kept) / network.storage_rate;
  }
  const bool pays = before - after >= kLeastGain * before && (before - after) * kHorizon >= moving;
  if (late_after > late_before || (late_after == late_before && !pays)) return;
  Use(*rungs);
  Settle();
}

}  // namespace flexcomp

#include "pool/model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "pool/clock.h"
#include "pool/shared_choice.h"

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

constexpr int kMostTries = 8;

// Of each network the rung that keeps most, among those.
Rungs Largest(const Networks& networks, const std::vector<Rungs>& among) {
  Rungs largest;
  for (size_t i = 0; i < networks.size(); ++i) {
    const auto kept = [&](uint32_t rung) { return networks[i]->ladder()[rung].kept; };
    largest.push_back(*std::ranges::max_element(among[i], {}, kept));
  }
  return largest;
}

}  // namespace

std::shared_ptr<Model> Roster::Find(uint32_t number) const noexcept {
  const auto found = models_.find(number);
  return found == models_.end() || found->second->leaving ? nullptr : found->second;
}

std::optional<uint32_t> Roster::FindNumber(const std::string& name) const noexcept {
  for (const auto& [number, model] : models_)
    if (model->name == name && !model->leaving) return number;
  return std::nullopt;
}

uint32_t Roster::NumberOf(const std::string& name) const {
  if (const auto number = FindNumber(name)) return *number;
  std::string names;
  for (const auto& [number, model] : models_) names += (names.empty() ? "" : ", ") + model->name;
  RaiseError("InputError", "there is no model ", name, " in the pool: there is ", names.empty() ? "none" : names);
}

void Roster::Insert(uint32_t number, std::shared_ptr<Model> model) {
  if (std::ranges::find(networks_, model->network) == networks_.end()) networks_.push_back(model->network);
  models_.emplace(number, std::move(model));
}

void Roster::Erase(uint32_t number) {
  const std::shared_ptr<Network> network = models_.at(number)->network;
  models_.erase(number);
  if (std::ranges::none_of(models_, [&](const auto& entry) { return entry.second->network == network; })) std::erase(networks_, network);
}

double Roster::DeadlineOf(const Network& network) const noexcept {
  double deadline = INFINITY;
  for (const auto& [number, model] : models_)
    if (model->network.get() == &network) deadline = std::min(deadline, model->options.deadline_s.value_or(INFINITY));
  return deadline;
}

std::vector<ShareModel> Roster::ShareModels(double now, bool meet_deadlines, std::vector<Rungs>& kept) const {
  std::vector<ShareModel> models;
  kept.clear();
  for (const auto& network : networks_) {
    ShareModel shared;
    shared.weight = 0;
    shared.lane = network->lane;
    if (network->broken) {  // holds nothing, and will not
      shared.rungs.push_back({});
      kept.push_back({0});
      models.push_back(std::move(shared));
      continue;
    }
    uint64_t keep = UINT64_MAX;
    const double deadline = DeadlineOf(*network);
    for (const auto& [number, model] : models_) {
      if (model->network != network) continue;
      shared.weight += model->RateAt(now) * model->options.urgency;
      keep = std::min(keep, model->options.keep);
    }
    std::vector<uint32_t> rungs = Allowed(network->ladder(), keep);
    const auto late = [&](uint32_t rung) { return network->latency.Safe(network->ladder()[rung].seconds) > deadline; };
    if (meet_deadlines && !std::ranges::all_of(rungs, late)) std::erase_if(rungs, late);
    for (const uint32_t rung : rungs) {
      shared.rungs.push_back(network->ladder()[rung]);
      shared.rungs.back().seconds = network->latency.Likely(network->MeanSeconds(rung));
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

std::optional<Roster::Targets> Roster::FindShares(uint64_t budget, bool by_swapnet, bool thorough, double now, uint64_t& least) const {
  std::vector<Rungs> kept;
  for (const bool meet_deadlines : {true, false}) {
    std::vector<ShareModel> models = ShareModels(now, meet_deadlines, kept);
    // Rungs are found as if nothing were shared, for a budget with as many bytes more as are saved on these rungs: at first
    // with the most that there can be.
    uint64_t saved = by_swapnet || budget == 0 ? 0 : SavedNbytes(networks_, Largest(networks_, kept));
    const bool shares_any = saved > 0;
    for (int tries = kMostTries;; --tries) {
      Shares shares = by_swapnet ? ShareBySwapNet(models, budget) : ShareSoon(models, kept, budget + saved);
      least = shares.least;
      Rungs rungs;
      for (size_t i = 0; i < shares.rungs.size(); ++i) rungs.push_back(kept[i][shares.rungs[i]]);
      if (rungs.empty()) {
        if (saved == 0) break;
        saved = 0;
        continue;
      }
      if (by_swapnet) return Targets{std::move(rungs), Commons(networks_.size())};
      if (const uint64_t found = saved > 0 ? SavedNbytes(networks_, rungs) : 0; shares.nbytes > budget + found) {
        saved = tries > 0 ? std::min(found, saved - 1) : 0;
        continue;
      }
      if (Rungs better = rungs; thorough && shares_any) {
        ImproveShared(networks_, models, kept, budget, better);
        Targets targets = TargetsOf(std::move(better), budget);
        if (NbytesOf(targets) <= budget) return targets;  // pages of the system may be larger than those that count here
      }
      return TargetsOf(std::move(rungs), budget);
    }
  }
  return std::nullopt;
}

Roster::Targets Roster::TargetsOf(Rungs rungs, uint64_t budget) const {
  Targets targets{std::move(rungs), {}};
  targets.common = ShareWeights(networks_, targets.rungs, true);
  if (NbytesOf(targets) > budget) targets.common = ShareWeights(networks_, targets.rungs, false);
  return targets;
}

uint64_t Roster::NbytesOf(const Targets& targets) const {
  uint64_t sum = CommonNbytes(targets.common);
  std::map<uint32_t, uint64_t> lanes;
  for (size_t i = 0; i < networks_.size(); ++i) {
    if (networks_[i]->broken) continue;
    const ShareRung& rung = networks_[i]->ladder()[targets.rungs[i]];
    uint64_t& working = lanes[networks_[i]->lane];
    working = std::max(working, rung.working);
    sum += targets.common[i] ? targets.common[i]->kept : rung.kept;
  }
  for (const auto& [lane, working] : lanes) sum += working;
  return sum;
}

Roster::Targets Roster::Share(uint64_t budget, bool by_swapnet) const {
  if (networks_.empty()) return {};
  uint64_t least = 0;
  auto targets = FindShares(budget, by_swapnet, true, Now(), least);
  if (!targets)
    RaiseError("BudgetError", "a budget of ", budget, " bytes is too small for ", networks_.size(),
               networks_.size() > 1 ? " models: the smallest that is enough for them is " : " model: the smallest that is enough is ",
               least, " bytes");
  return *std::move(targets);
}

bool Roster::Pays(const Targets& found, double now) const {
  constexpr double kHorizon = 10, kLeastGain = 0.02;
  double before = 0, after = 0, moving = 0;
  int late_before = 0, late_after = 0;
  std::vector<Rungs> kept;
  const std::vector<ShareModel> models = ShareModels(now, false, kept);
  for (size_t i = 0; i < networks_.size(); ++i) {
    const Network& network = *networks_[i];
    if (network.broken) continue;
    const ShareRung &used = network.ladder()[network.target], &better = network.ladder()[found.rungs[i]];
    const double cost = models[i].weight * network.latency.ratio(), deadline = DeadlineOf(network);
    before += cost * network.MeanSeconds(network.target);
    after += cost * network.MeanSeconds(found.rungs[i]);
    late_before += network.latency.Safe(used.seconds) > deadline;
    late_after += network.latency.Safe(better.seconds) > deadline;
    if (found.rungs[i] != network.target) moving += static_cast<double>(better.kept) / network.storage_rate;
  }
  if (late_after != late_before) return late_after < late_before;
  return before - after >= kLeastGain * before && (before - after) * kHorizon >= moving;
}

}  // namespace flexcomp

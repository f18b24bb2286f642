#include "pool/pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "pool/clock.h"
#include "threads/cores.h"

namespace flexcomp {
namespace {

constexpr uint32_t kMostLanes = 64;
constexpr uint64_t kMostWaiting = 1 << 16;
constexpr double kUnknownRate = 1;  // requests in a second

bool IsPositive(double number) { return std::isfinite(number) && number > 0; }

void Check(const PoolOptions& options) {
  if (options.lanes == 0 || options.lanes > kMostLanes)
    RaiseError("InputError", "a pool has 1 to ", kMostLanes, " lanes, not ", options.lanes);
  if (options.most_waiting == 0 || options.most_waiting > kMostWaiting)
    RaiseError("InputError", "1 to ", kMostWaiting, " requests of a model may wait, not ", options.most_waiting);
  if (options.threads < 0) RaiseError("InputError", "cannot run on ", options.threads, " threads");
}

void Check(const std::string& name, const ModelOptions& options) {
  if (name.empty()) Raise("InputError", "a model needs a name");
  if (!IsPositive(options.urgency)) RaiseError("InputError", "the urgency of ", name, " is ", options.urgency, ": it must be above 0");
  if (options.rate && !IsPositive(*options.rate)) RaiseError("InputError", "the rate of ", name, " is ", *options.rate, ": it must be above 0");
  if (options.deadline_s && !IsPositive(*options.deadline_s))
    RaiseError("InputError", "the deadline of ", name, " is ", *options.deadline_s * 1e3, " ms: it must be above 0");
}

CpuSet Computing() {
  const auto available = CpuSet::Available();
  if (!available) Raise("InputError", "the system does not say which cores there are: use one lane");
  const Placement all = Place({}, 0, available->count());
  return all.compute.empty() ? *available : all.compute;
}

// Within `keep`; the ones that keep least, where none is.
std::vector<uint32_t> Allowed(const std::vector<ShareRung>& ladder, uint64_t keep) {
  const uint64_t most = std::max(keep, std::ranges::min_element(ladder, {}, &ShareRung::kept)->kept);
  std::vector<uint32_t> rungs;
  for (uint32_t i = 0; i < ladder.size(); ++i)
    if (ladder[i].kept <= most) rungs.push_back(i);
  return rungs;
}

}  // namespace

Pool::Pool(const PoolOptions& options) : options_(options), budget_(options.budget) {
  Check(options);
  if (options.lanes > 1 && static_cast<int>(options.lanes) > Computing().count())
    RaiseError("InputError", options.lanes, " lanes need a core each, and there are ", Computing().count());
  for (uint32_t lane = 0; lane < options.lanes; ++lane) lanes_.push_back(std::make_unique<Lane>());
  try {
    for (uint32_t lane = 0; lane < options.lanes; ++lane) lanes_[lane]->thread = std::thread([this, lane] { Main(lane); });
  } catch (...) {
    Close();
    throw;
  }
}

Pool::~Pool() { Close(); }

void Pool::RequireOpen() const {
  if (!process_.IsThisProcess()) Raise("ExecutionError", "the pool was made before this process was forked: make one here");
  if (closed_) Raise("ExecutionError", "the pool is closed");
}

Pool::Model& Pool::ModelOf(const std::string& name) {
  for (auto& [number, model] : models_)
    if (model.name == name && !model.leaving) return model;
  std::string names;
  for (const auto& [number, model] : models_) names += (names.empty() ? "" : ", ") + model.name;
  RaiseError("InputError", "there is no model ", name, " in the pool: there is ", names.empty() ? "none" : names);
}

LanePlace Pool::PlaceOf(uint32_t lane) const {
  LanePlace place{lanes_[lane]->memory};
  place.threads = options_.threads;
  if (options_.lanes == 1) return place;
  const std::vector<int> cores = Computing().cpus();
  const auto part = [&](uint32_t of) { return cores.size() * of / options_.lanes; };
  CpuSet own;
  for (size_t i = part(lane); i < part(lane + 1); ++i) own.Insert(cores[i]);
  place.compute_cpus = own.ToString();
  if (place.threads == 0) place.threads = own.count();
  place.other_threads = options_.threads > 0 ? options_.threads * static_cast<int>(options_.lanes - 1) : static_cast<int>(cores.size()) - own.count();
  return place;
}

uint32_t Pool::ChooseLane() const {
  const double now = Now();
  std::vector<std::pair<double, size_t>> load(lanes_.size());
  for (const auto& [number, model] : models_)
    load[model.network->lane].first += RateOf(model, now) * SecondsOf(*model.network, false);
  for (const auto& network : networks_) ++load[network->lane].second;
  return static_cast<uint32_t>(std::ranges::min_element(load) - load.begin());
}

double Pool::RateOf(const Model& model, double now) const {
  return model.options.rate ? *model.options.rate : model.rate.PerSecond(now).value_or(kUnknownRate);
}

double Pool::SecondsOf(const Network& network, bool safe) const {
  const ShareRung& rung = network.ladder()[network.target];
  const double loading = network.cold ? static_cast<double>(rung.kept) / storage_rate_ : 0;
  return loading + (safe ? network.latency.Safe(rung.seconds) : network.latency.Likely(rung.seconds));
}

double Pool::SecondsOf(uint32_t model) const { return SecondsOf(*models_.at(model).network, true); }

// ------------------------------------------------------------------------------------------------- shares

std::vector<ShareModel> Pool::ShareModels(double now, bool meet_deadlines, std::vector<std::vector<uint32_t>>& kept) const {
  std::vector<ShareModel> models;
  kept.clear();
  for (const auto& network : networks_) {
    ShareModel shared;
    shared.weight = 0;
    shared.lane = network->lane;
    uint64_t keep = UINT64_MAX;
    double deadline = INFINITY;
    for (const auto& [number, model] : models_) {
      if (model.network != network.get()) continue;
      shared.weight += RateOf(model, now) * model.options.urgency;
      keep = std::min(keep, model.options.keep);
      deadline = std::min(deadline, model.options.deadline_s.value_or(INFINITY));
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
    const std::vector<ShareModel> models = ShareModels(now, meet_deadlines, kept);
    Shares shares = ShareExactly(models, budget);
    least = shares.least;
    if (shares.rungs.empty()) continue;
    for (size_t i = 0; i < kept.size(); ++i) shares.rungs[i] = kept[i][shares.rungs[i]];
    return std::move(shares.rungs);
  }
  return std::nullopt;
}

void Pool::Share(uint64_t budget) {
  if (!networks_.empty()) {
    uint64_t least = 0;
    const auto rungs = FindShares(budget, Now(), least);
    if (!rungs)
      RaiseError("BudgetError", "a budget of ", budget, " bytes is too small for ", networks_.size(),
                 networks_.size() > 1 ? " models: the smallest that is enough for them is " : " model: the smallest that is enough is ",
                 least, " bytes");
    for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->target = (*rungs)[i];
    ++reshared_;
  }
  budget_ = budget;
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
  std::vector<std::vector<uint32_t>> kept;
  const std::vector<ShareModel> models = ShareModels(now, false, kept);
  for (size_t i = 0; i < networks_.size(); ++i) {
    const Network& network = *networks_[i];
    const auto& ladder = network.ladder();
    const double cost = models[i].weight * network.latency.ratio();
    before += cost * ladder[network.target].seconds;
    after += cost * ladder[(*rungs)[i]].seconds;
    if ((*rungs)[i] != network.target) moving += static_cast<double>(ladder[(*rungs)[i]].kept) / storage_rate_;
  }
  if (before - after < kLeastGain * before || (before - after) * kHorizon < moving) return;
  for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->target = (*rungs)[i];
  ++reshared_;
  Settle();
}

uint64_t Pool::Claimed() const noexcept {
  uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->memory.nbytes();
  for (const auto& network : networks_) sum += network->claimed;
  return sum;
}

uint64_t Pool::LaneTarget(uint32_t lane) const noexcept {
  uint64_t most = 0;
  for (const auto& network : networks_)
    if (network->lane == lane) most = std::max(most, network->ladder()[network->target].working);
  return most;
}

void Pool::Settle() {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) SettleLane(lane);
  wake_.notify_all();
}

void Pool::SettleLane(uint32_t number) {
  Lane& lane = *lanes_[number];
  for (const auto& network : networks_)
    if (network->lane == number && network.get() != lane.running && network->rung != network->target) ParkNow(*network);
  const uint64_t most = LaneTarget(number);
  if (lane.running != nullptr || lane.memory.nbytes() <= most) return;
  Leave(lane);
  lane.memory.Resize(most);
}

void Pool::Break(Network& network, const tvm::ffi::Error& error) {
  network.Close();
  network.claimed = 0;
  network.broken = error.message() + ": remove the model from the pool and add it again";
}

void Pool::Leave(Lane& lane) {
  Network* const last = std::exchange(lane.last, nullptr);
  if (last == nullptr || !last->broken.empty()) return;
  try {
    last->LeaveLane();
  } catch (const tvm::ffi::Error& error) {
    Break(*last, error);  // it may still read into the lane
  }
}

void Pool::ParkNow(Network& network) {
  try {
    if (network.broken.empty()) network.Park(network.target);
  } catch (const tvm::ffi::Error& error) {
    Break(network, error);  // it must not hold more than its share, and cannot use that
  }
  network.stopping = false;
  network.rung = network.target;
  network.claimed = std::min(network.claimed, network.state_nbytes());
  network.cold = true;
}

// ------------------------------------------------------------------------------------------------- changes

void Pool::Add(const std::string& name, const ModelOptions& options, const Program& program, const std::string& library,
               const std::string& weights, const tvm::ffi::json::Object& session_options) {
  Check(name, options);
  const std::lock_guard changes(changes_);
  uint32_t lane = 0;
  Network* network = nullptr;
  {
    const std::lock_guard lock(mutex_);
    RequireOpen();
    for (const auto& [number, model] : models_)
      if (model.name == name) RaiseError("InputError", "there is a model ", name, " in the pool already: remove it first");
    for (const auto& one : networks_)
      if (one->IsOf(library, weights) && one->state_nbytes() == 0) network = one.get();
    lane = ChooseLane();
  }
  std::unique_ptr<Network> opened;
  if (network == nullptr) {
    opened = std::make_unique<Network>(program, library, weights, session_options, PlaceOf(lane));
    opened->lane = lane;
    network = opened.get();
  }
  const std::lock_guard lock(mutex_);
  RequireOpen();
  const bool fresh = opened != nullptr;
  if (fresh) networks_.push_back(std::move(opened));
  const auto model = models_.emplace(next_model_, Model{name, options, network, {}}).first;
  try {
    Share(budget_);
    if (fresh) {
      network->Park(network->target);
      network->rung = network->target;
    }
  } catch (...) {
    models_.erase(model);
    if (fresh) networks_.pop_back();
    throw;
  }
  ++next_model_;
  Settle();
}

void Pool::Remove(const std::string& name) {
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  Model& model = ModelOf(name);
  Network* const network = model.network;
  Lane& lane = *lanes_[network->lane];
  const auto number = std::ranges::find(models_, &model, [](auto& entry) { return &entry.second; })->first;
  model.leaving = true;
  const auto fail = [&] { FailWaiting(network->lane, "InputError", "the model " + name + " was removed from the pool", number); };
  fail();
  done_.wait(lock, [&] { return model.running == 0; });
  fail();  // what was stopped waits again
  models_.erase(number);
  if (std::ranges::none_of(models_, [&](const auto& entry) { return entry.second.network == network; })) {
    if (lane.last == network) lane.last = nullptr;
    const auto found = std::ranges::find(networks_, network, &std::unique_ptr<Network>::get);
    std::unique_ptr<Network> closing = std::move(*found);
    networks_.erase(found);
    closing.reset();
  }
  Share(budget_);
  Settle();
}

void Pool::SetBudget(uint64_t budget) {
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  Share(budget);
  Settle();
  for (const auto& lane : lanes_) {
    Network* const running = lane->running;
    if (Claimed() <= budget_ || running == nullptr || !running->broken.empty()) continue;
    if (running->rung == running->target && lane->memory.nbytes() <= LaneTarget(running->lane)) continue;
    running->Stop();
    running->stopping = true;
  }
  done_.wait(lock, [&] { return closed_ || Claimed() <= budget_; });
}

void Pool::Close() {
  if (!process_.IsThisProcess()) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane) FailWaiting(lane, "ExecutionError", "the pool was closed", {});
    wake_.notify_all();
    done_.notify_all();
  }
  for (const auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  collect_.notify_all();
  models_.clear();
  networks_.clear();
  for (const auto& lane : lanes_) {
    lane->last = nullptr;
    lane->memory.Resize(0);
  }
}

}  // namespace flexcomp

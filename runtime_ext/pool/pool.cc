#include "pool/pool.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "pool/clock.h"
#include "threads/cores.h"

namespace flexcomp {
namespace {

constexpr uint32_t kMostLanes = 64;
constexpr uint64_t kMostWaiting = 1 << 16;

constexpr double kLeastFactor = 1e-6, kMostFactor = 1e6;  // of urgency and rates: products of them can be added up

bool IsPositive(double number) { return std::isfinite(number) && number > 0; }
bool IsFactor(double number) { return number >= kLeastFactor && number <= kMostFactor; }

void Check(const PoolOptions& options) {
  if (options.lanes == 0 || options.lanes > kMostLanes)
    RaiseError("InputError", "a pool has 1 to ", kMostLanes, " lanes, not ", options.lanes);
  if (options.most_waiting == 0 || options.most_waiting > kMostWaiting)
    RaiseError("InputError", "1 to ", kMostWaiting, " requests of a model may wait, not ", options.most_waiting);
  if (options.threads < 0) RaiseError("InputError", "cannot run on ", options.threads, " threads");
}

void Check(const std::string& name, const ModelOptions& options) {
  if (name.empty()) Raise("InputError", "a model needs a name");
  if (!IsFactor(options.urgency))
    RaiseError("InputError", "the urgency of ", name, " is ", options.urgency, ": it must be from ", kLeastFactor, " to ", kMostFactor);
  if (options.rate && !IsFactor(*options.rate))
    RaiseError("InputError", "the rate of ", name, " is ", *options.rate, ": it must be from ", kLeastFactor, " to ", kMostFactor);
  if (options.deadline_s && !IsPositive(*options.deadline_s))
    RaiseError("InputError", "the deadline of ", name, " is ", *options.deadline_s * 1e3, " ms: it must be above 0");
}

CpuSet Computing() {
  const auto available = CpuSet::Available();
  if (!available) Raise("InputError", "the system does not say which cores there are: use one lane");
  const Placement all = Place({}, 0, available->count());
  return all.compute.empty() ? *available : all.compute;
}

// Counts one more until its end, when the lock is held again.
struct Opening {
  std::unique_lock<std::mutex>& lock;
  uint32_t* count = nullptr;

  void Count(uint32_t& one) { ++*(count = &one); }
  ~Opening() {
    if (count == nullptr) return;
    if (!lock.owns_lock()) lock.lock();
    --*count;
  }
};

}  // namespace

Pool::Pool(const PoolOptions& options) : options_(options), budget_(options.budget) {
  Check(options);
  if (options.lanes > 1) cores_ = Computing();
  if (options.lanes > 1 && static_cast<int>(options.lanes) > cores_.count())
    RaiseError("InputError", options.lanes, " lanes need a core each, and there are ", cores_.count());
  for (uint32_t lane = 0; lane < options.lanes; ++lane) lanes_.push_back(std::make_unique<Lane>());
  try {
    for (uint32_t lane = 0; lane < options.lanes; ++lane) lanes_[lane]->thread = std::thread([this, lane] { Main(lane); });
  } catch (...) {
    Close();
    throw;
  }
}

Pool::~Pool() { Close(); }

// Before any lock is taken, which a thread may have held when the process was forked.
void Pool::RequireThisProcess() const {
  if (!process_.IsThisProcess()) Raise("ExecutionError", "the pool was made before this process was forked: make one here");
}

void Pool::RequireOpen() const {
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
  const std::vector<int> cores = cores_.cpus();
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
    load[model.network->lane].first += RateOf(model, now) * model.network->latency.Likely(model.network->ladder()[model.network->target].seconds);
  for (const auto& network : networks_) ++load[network->lane].second;
  for (size_t i = 0; i < lanes_.size(); ++i) load[i].second += lanes_[i]->opening;
  return static_cast<uint32_t>(std::ranges::min_element(load) - load.begin());
}

double Pool::RateOf(const Model& model, double now) const {
  return model.options.rate ? *model.options.rate : model.rate.Likely(now);
}

double Pool::LoadingOf(const Network& network) noexcept {
  return network.cold ? static_cast<double>(network.ladder()[network.target].kept) / network.storage_rate : 0;
}

RequestQueue::SecondsOf Pool::SecondsInOrder() const {
  return [this, loaded = std::vector<const Network*>()](uint32_t model) mutable {
    const Network& network = *models_.at(model).network;
    const bool first = std::ranges::find(loaded, &network) == loaded.end();
    if (first) loaded.push_back(&network);
    return (first ? LoadingOf(network) : 0) + network.latency.Safe(network.ladder()[network.target].seconds);
  };
}

// ------------------------------------------------------------------------------------------------- memory

uint64_t Pool::Claimed() const noexcept {
  uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->memory.nbytes();
  for (const auto& network : networks_) sum += network->claimed;
  return sum;
}

uint64_t Pool::LaneTarget(uint32_t lane) const noexcept {
  uint64_t most = 0;
  for (const auto& network : networks_)
    if (network->lane == lane && network->broken.empty()) most = std::max(most, network->ladder()[network->target].working);
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
  shared_at_ = 0;  // the others may have its share soon
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
  RequireThisProcess();
  auto opened = std::make_shared<Network>(program, library, weights, session_options);
  const auto find = [&]() -> Network* {
    RequireOpen();
    for (const auto& [number, model] : models_)
      if (model.name == name && !model.leaving) RaiseError("InputError", "there is a model ", name, " in the pool already: remove it first");
    for (const auto& one : networks_)
      if (one->Serves(*opened)) return one.get();
    return nullptr;
  };
  // Opening may take long, and others change meanwhile: where the same network has come by then, this one is closed again.
  std::unique_lock changes(changes_, std::defer_lock);
  Lock lock(mutex_);
  Opening opening{lock};
  Network* network = find();
  while (!changes.owns_lock()) {
    if (network == nullptr && !opened->is_open()) {
      opened->lane = ChooseLane();
      SharesWith(Model{name, options, opened.get(), RateEstimate(Now())}, opened);  // or all that opening takes would be for nothing
      opening.Count(lanes_[opened->lane]->opening);
      lock.unlock();
      opened->Open(PlaceOf(opened->lane));
    } else {
      lock.unlock();
    }
    changes.lock();
    lock.lock();
    network = find();
    if (network == nullptr && !opened->is_open()) changes.unlock();  // it was there, and has been removed
  }
  const bool fresh = network == nullptr;
  const Model model{name, options, fresh ? opened.get() : network, RateEstimate(Now())};
  const std::vector<uint32_t> targets = SharesWith(model, fresh ? opened : nullptr);
  if (fresh) {
    opened->Park(targets.back());
    opened->rung = targets.back();
    networks_.push_back(opened);
  }
  models_.emplace(next_model_++, model);
  Use(targets);
  Settle();
}

void Pool::Remove(const std::string& name) {
  RequireThisProcess();
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
    const auto found = std::ranges::find(networks_, network, &std::shared_ptr<Network>::get);
    const std::shared_ptr<Network> closing = std::move(*found);
    networks_.erase(found);
    closing->Close();
  }
  uint64_t least = 0;
  if (const auto targets = networks_.empty() ? std::nullopt : FindShares(budget_, Now(), least)) Use(*targets);  // or what they had
  Settle();
}

void Pool::SetBudget(uint64_t budget) {
  RequireThisProcess();
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  Use(SharesOf(budget));
  budget_ = budget;
  Settle();
  for (const auto& lane : lanes_) {
    Network* const running = lane->running;
    if (Claimed() <= budget_ || running == nullptr || !running->broken.empty()) continue;
    if (running->claimed <= running->ladder()[running->target].kept && lane->memory.nbytes() <= LaneTarget(running->lane)) continue;
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
  // Whoever removes a model or sets a budget comes to an end: lanes end their inferences.
  const std::lock_guard changes(changes_);
  for (const auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
  Lock lock(mutex_);
  done_.wait(lock, [&] { return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->running == nullptr; }); });
  ended_ = true;
  collect_.notify_all();
  models_.clear();
  for (const auto& network : networks_) network->Close();
  networks_.clear();
  for (const auto& lane : lanes_) {
    lane->last = nullptr;
    lane->memory.Resize(0);
  }
}

}  // namespace flexcomp

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
  for (const auto& [number, model] : roster_.models()) {
    const Network& network = *model->network;
    load[network.lane].first += model->RateAt(now) * network.latency.Likely(network.MeanSeconds(network.target));
  }
  for (const auto& network : roster_.networks()) ++load[network->lane].second;
  for (size_t i = 0; i < lanes_.size(); ++i) load[i].second += lanes_[i]->opening;
  return static_cast<uint32_t>(std::ranges::min_element(load) - load.begin());
}

// ------------------------------------------------------------------------------------------------- changes

uint32_t Pool::Add(const std::string& name, const ModelOptions& options, const Program& program, const std::string& library,
                   const std::string& weights, const tvm::ffi::json::Object& session_options) {
  Check(name, options);
  RequireThisProcess();
  const auto opened = std::make_shared<Network>(program, library, weights, session_options);
  const auto model = std::make_shared<Model>(name, options, Now());
  std::unique_lock changes(changes_, std::defer_lock);
  Lock lock(mutex_);
  const uint32_t number = next_model_++;
  const auto joined = [&] {
    RequireOpen();
    if (roster_.FindNumber(name)) RaiseError("InputError", "there is a model ", name, " in the pool already: remove it first");
    const auto& networks = roster_.networks();
    const auto serving = std::ranges::find_if(networks, [&](const auto& one) { return one->Serves(*opened); });
    model->network = serving == networks.end() ? opened : *serving;
    Roster roster = roster_;
    roster.Insert(number, model);
    return roster;
  };
  // Opening may take long, and others change meanwhile: where the same network has come by then, this one is closed again.
  Opening opening{lock};
  Roster roster = joined();
  while (!changes.owns_lock()) {
    const bool opens = model->network == opened && !opened->is_open();
    if (opens) {
      opened->lane = ChooseLane();
      roster.Share(budget_, options_.by_swapnet);  // or all that opening takes would be for nothing
      opening.Count(lanes_[opened->lane]->opening);
    }
    lock.unlock();
    if (opens) opened->Open(PlaceOf(opened->lane));
    changes.lock();
    lock.lock();
    roster = joined();
    if (model->network == opened && !opened->is_open()) changes.unlock();  // the model was added, and has been removed
  }
  Roster::Targets targets = roster.Share(budget_, options_.by_swapnet);
  if (model->network == opened) {
    if (const auto error = opened->Park(targets.rungs.back(), targets.common.back().get())) throw *error;
    opened->rung = targets.rungs.back();
    opened->common = targets.common.back();
  }
  roster_.Swap(roster);
  Use(std::move(targets));
  Settle();
  return number;
}

void Pool::Remove(const std::string& name) {
  RequireThisProcess();
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  RemoveNow(roster_.NumberOf(name), lock);
}

bool Pool::Remove(uint32_t number) {
  RequireThisProcess();
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  if (!roster_.Find(number)) return false;
  RemoveNow(number, lock);
  return true;
}

void Pool::RemoveNow(uint32_t number, Lock& lock) {
  const std::shared_ptr<Model> model = roster_.Find(number);
  Roster roster = roster_;
  roster.Erase(number);
  model->leaving = true;
  FailWaiting(model.get(), Request::End::kRemoved);
  done_.wait(lock, [&] { return model->running == 0; });
  FailWaiting(model.get(), Request::End::kRemoved);  // the stopped request waits again
  roster_.Swap(roster);
  Network& network = *model->network;
  if (std::ranges::find(roster_.networks(), model->network) == roster_.networks().end()) {
    Lane& lane = *lanes_[network.lane];
    if (lane.last == &network) lane.last = nullptr;
    network.Close();
    network.claimed = 0;
    Release(network);
  }
  ShareAnew(true);
  Settle();
}

void Pool::SetBudget(uint64_t budget) {
  RequireThisProcess();
  const std::lock_guard changes(changes_);
  Lock lock(mutex_);
  RequireOpen();
  Use(roster_.Share(budget, options_.by_swapnet));
  budget_ = budget;
  Settle();
  for (const auto& lane : lanes_) {
    Network* const running = lane->running;
    if (Claimed() <= budget_ || running == nullptr || running->broken) continue;
    if (running->claimed <= running->target_kept() && running->common == running->target_common && lane->memory.nbytes() <= LaneTarget(running->lane)) continue;
    if (running->Stop()) running->stopping = true;  // or the request ends by itself
  }
  done_.wait(lock, [&] { return closed_ || Claimed() <= budget_; });
}

void Pool::Close() noexcept {
  if (!process_.IsThisProcess()) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    FailWaiting(nullptr, Request::End::kClosed);
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
  for (const auto& network : roster_.networks()) {
    network->Close();
    network->claimed = 0;
    Release(*network);
  }
  for (const auto& lane : lanes_) {
    lane->last = nullptr;
    lane->memory.Shrink(0);
  }
}

}  // namespace flexcomp

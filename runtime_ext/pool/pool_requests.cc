// Requests of a pool: how they come in, take their turns, and end.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {
namespace {

constexpr double kTrusted = 1;  // second, after which an estimate is worth a try
constexpr double kQuick = 2e-3;  // seconds for which whoever submits a request can do without its thread

// A bit behind `seconds` of the pool's clock, or 30 years of it: its nanoseconds have 64 bits, and a deadline may be any number.
std::chrono::steady_clock::time_point Behind(double seconds) {
  constexpr double kBit = 1e-4, kMost = 1e9;
  return std::chrono::steady_clock::time_point(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kMost) + kBit)));
}

std::string Milliseconds(double seconds) {
  std::ostringstream out;
  out.precision(3);
  out << seconds * 1e3 << " ms";
  return out.str();
}

}  // namespace

Pool::Submitted Pool::Submit(const std::string& name, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors) {
  if (options.deadline_s && !(std::isfinite(*options.deadline_s) && *options.deadline_s > 0))
    RaiseError("InputError", "a deadline of ", *options.deadline_s * 1e3, " ms was given: it must be above 0");
  RequireThisProcess();
  Lock lock(mutex_);
  RequireOpen();
  const double now = Now();
  Model& model = ModelOf(name);
  Network& network = *model.network;
  if (tensors.size() != network.ports())
    RaiseError("InputError", name, " takes ", network.ports(), " tensors, for its inputs and outputs, not ", tensors.size());
  Lane& lane = *lanes_[network.lane];
  ++model.requests;
  model.rate.Note(now);
  const double free = std::max(now, lane.free);
  const auto refuse = [&](const char* reason, const std::string& message, double retry) {
    ++model.refused;
    return Submitted{.refusal = {reason, message, std::max(retry, 0.0)}};
  };
  if (model.waiting >= options_.most_waiting)
    return refuse("queue", std::to_string(model.waiting) + " requests of " + name + " wait already, as many as may",
                  free - now + lane.queue.Seconds(SecondsInOrder()) / 2);

  Request request;
  request.deadline = options.deadline_s ? options.deadline_s : model.options.deadline_s;
  if (request.deadline) *request.deadline += now;
  request.late = options.late;
  request.collected = options.collected;
  request.tensors = std::move(tensors);
  const double likely = LoadingOf(network) + network.latency.Likely(network.ladder()[network.target].seconds);
  const auto number = std::ranges::find(models_, &model, [](auto& entry) { return &entry.second; })->first;
  request.queued = {next_request_, number, now, request.deadline.value_or(RequestQueue::Due(now, likely, model.options.urgency)),
                    options.late ? std::nullopt : request.deadline, model.options.urgency};
  RequestQueue::Outlook outlook = lane.queue.Look(request.queued, free, SecondsInOrder());
  // One that may be late makes room instead.
  while (!request.queued.deadline && outlook.spoiled != nullptr) {
    request.queued.due = outlook.spoiled->due;
    request.queued.urgency = 0;  // behind it
    outlook = lane.queue.Look(request.queued, free, SecondsInOrder());
  }
  // An estimate that has become too large would refuse whatever could correct it: now and then an idle lane tries.
  const bool tries = lane.running == nullptr && lane.queue.empty() && request.deadline && now - network.noted_at > kTrusted &&
                     network.ladder()[network.target].seconds < *request.deadline - now;
  if (!outlook.meets && !tries) {
    const std::string ends = "would end in " + Milliseconds(outlook.ends - now);
    return refuse("deadline",
                  outlook.spoiled != nullptr ? "a request of " + name + " would make another miss its deadline"
                                       : "a request of " + name + " " + ends + ", behind its deadline of " + Milliseconds(*request.deadline - now),
                  outlook.spoiled != nullptr ? likely : outlook.ends - *request.deadline);
  }
  const uint64_t id = next_request_++;
  if (request.queued.deadline && *request.queued.deadline < NextDeadline()) collect_.notify_one();
  lane.queue.Push(request.queued);
  Request& submitted = requests_.emplace(id, std::move(request)).first->second;
  ++model.waiting;
  if (options.here && RunsHere(network.lane)) {
    submitted.here = true;
    RunFirst(network.lane, lock);
    return {.id = id, .done = submitted.done};
  }
  wake_.notify_all();
  return {.id = id};
}

// One lane has all cores, so that any thread may run what is in it. A plan may be of a faster storage than this: what has not been
// seen to be quick could hold up whoever submits it.
bool Pool::RunsHere(uint32_t number) {
  Lane& lane = *lanes_[number];
  if (lanes_.size() > 1 || lane.queue.size() != 1 || !Dispatchable(number)) return false;
  const Network& network = *models_.at(lane.queue.first().model).network;
  return !network.cold && network.broken.empty() && network.latency.noted() &&
         network.latency.Likely(network.ladder()[network.rung].seconds) <= kQuick;
}

Completion Pool::Wait(uint64_t id, std::optional<Refusal>& refusal) {
  RequireThisProcess();
  Request request;
  {
    Lock lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second.waited) RaiseError("InputError", "there is no request ", id, ", or somebody waits for it");
    found->second.waited = true;
    while (!found->second.done) {
      const Request& waiting = found->second;
      if (waiting.running || !waiting.queued.deadline) {
        done_.wait(lock);
        continue;
      }
      done_.wait_until(lock, Behind(*waiting.queued.deadline));
      // It is dropped when that has passed, also behind an inference that takes long.
      if (!waiting.done && !waiting.running) DropLate(*lanes_[models_.at(waiting.queued.model).network->lane]);
    }
    request = std::move(found->second);
    requests_.erase(found);
  }
  // Its tensors go here, where nobody waits for it.
  request.tensors.clear();
  refusal = std::move(request.refusal);
  if (request.error) throw *request.error;
  return request.completion;
}

bool Pool::Cancel(uint64_t id) {
  RequireThisProcess();
  Request cancelled;
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second.running || found->second.done) return false;
  const auto model = models_.find(found->second.queued.model);
  lanes_[model->second.network->lane]->queue.Remove(id);
  --model->second.waiting;
  ++model->second.cancelled;
  wake_.notify_all();
  if (found->second.waited) {
    found->second.error.emplace("ExecutionError", "the request was cancelled", "");
    Complete(found->second);
    return true;
  }
  cancelled = std::move(found->second);
  requests_.erase(found);
  return true;
}

std::string Pool::Broken(const std::string& name) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  return ModelOf(name).network->broken;
}

uint64_t Pool::Collect() {
  RequireThisProcess();
  Lock lock(mutex_);
  while (!ended_ && collected_.empty()) {
    const double next = NextDeadline();
    if (next == INFINITY) {
      collect_.wait(lock);
    } else {
      collect_.wait_until(lock, Behind(next));
      for (const auto& lane : lanes_) DropLate(*lane);
    }
  }
  if (collected_.empty()) return 0;
  const uint64_t id = collected_.front();
  collected_.pop_front();
  return id;
}

void Pool::Complete(Request& request) {
  request.running = false;
  request.done = true;
  if (request.collected && !request.here) {
    collected_.push_back(request.queued.id);
    collect_.notify_one();
  }
  done_.notify_all();
}

void Pool::FailWaiting(uint32_t lane, const std::string& kind, const std::string& message, std::optional<uint32_t> model) {
  const std::vector<Queued> waiting = lanes_[lane]->queue.requests();
  for (const Queued& queued : waiting) {
    if (model && queued.model != *model) continue;
    lanes_[lane]->queue.Remove(queued.id);
    --models_.at(queued.model).waiting;
    ++models_.at(queued.model).failed;
    Request& request = requests_.at(queued.id);
    request.error.emplace(kind, message, "");
    Complete(request);
  }
}

// ------------------------------------------------------------------------------------------------- turns

void Pool::Main(uint32_t number) {
  Lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closed_ || Dispatchable(number); });
    if (closed_) return;
    RunFirst(number, lock);
  }
}

void Pool::DropLate(Lane& lane) {
  for (const Queued& late : lane.queue.DropLate(Now())) {
    Model& model = models_.at(late.model);
    --model.waiting;
    ++model.missed;
    ++model.dropped;
    Request& request = requests_.at(late.id);
    request.refusal = {"deadline", "the deadline of a request of " + model.name + " passed while it waited", 0};
    Complete(request);
  }
}

double Pool::NextDeadline() const noexcept {
  double next = INFINITY;
  for (const auto& lane : lanes_) next = std::min(next, lane->queue.NextDeadline());
  return next;
}

bool Pool::Dispatchable(uint32_t number) {
  Lane& lane = *lanes_[number];
  DropLate(lane);
  if (lane.queue.empty() || lane.running != nullptr) return false;
  const Network& network = *models_.at(lane.queue.first().model).network;
  if (!network.broken.empty()) return true;  // which its requests are told
  const ShareRung& rung = network.ladder()[network.rung];
  const uint64_t more = rung.working > lane.memory.nbytes() ? rung.working - lane.memory.nbytes() : 0;
  return Claimed() - network.claimed + rung.kept + more <= budget_;
}

std::optional<tvm::ffi::Error> Pool::RunNow(Lane& lane, Network& network, const Request& request, Lock& lock, double& took,
                                            Network::Reading& reading) {
  const bool alone = std::ranges::none_of(networks_, [&](const auto& other) { return other->lane == network.lane && other.get() != &network; });
  const bool reads = network.cold || network.rung + 1 < network.ladder().size();  // otherwise all stays
  const bool again = lane.queue.empty() ? alone : models_.at(lane.queue.first().model).network == &network;
  std::optional<tvm::ffi::Error> error;
  try {
    if (!network.broken.empty()) Raise("ExecutionError", network.broken);
    if (lane.last != &network) Leave(lane);
    lane.memory.Resize(std::max(lane.memory.nbytes(), network.ladder()[network.rung].working));
    lock.unlock();
    network.ReadAhead(again);
    const double started = Now();
    network.Run(request.tensors);
    took = Now() - started;
    if (reads) reading = network.LastReading();
  } catch (const tvm::ffi::Error& raised) {
    error = raised;
  } catch (const std::exception& raised) {
    error.emplace("ExecutionError", raised.what(), "");
  }
  if (!lock.owns_lock()) lock.lock();
  return error;
}

void Pool::RunFirst(uint32_t number, Lock& lock) {
  Lane& lane = *lanes_[number];
  Request& request = requests_.at(lane.queue.first().id);
  Model& model = models_.at(request.queued.model);
  Network& network = *model.network;
  const size_t rung = network.rung;
  const bool cold = network.cold;
  const double begin = Now();
  lane.queue.Remove(request.queued.id);
  lane.running = &network;
  lane.free = begin + LoadingOf(network) + network.latency.Safe(network.ladder()[rung].seconds);
  if (network.broken.empty()) network.claimed = network.ladder()[rung].kept;
  request.running = true;
  --model.waiting;
  ++model.running;
  double took = 0;
  Network::Reading reading;
  std::optional<tvm::ffi::Error> error = RunNow(lane, network, request, lock, took, reading);

  const bool stopped = error && error->kind() == "Stopped";
  --model.running;
  lane.running = nullptr;
  lane.last = &network;
  lane.free = 0;
  if (stopped) {
    request.running = false;
    ++model.restarts;
    if (closed_) {
      request.error.emplace("ExecutionError", "the pool was closed", "");
      Complete(request);
    } else {
      request.here = false;  // its turn comes when there is memory for it
      lane.queue.Push(request.queued);
      ++model.waiting;
    }
  } else {
    request.completion = {begin - request.queued.arrived, took, rung};
    model.wait_s = request.completion.wait_s;
    model.run_s = took;
    network.noted_at = Now();
    if (error) {
      ++model.failed;
      request.error = std::move(error);
      network.cold = true;
    } else {
      ++model.completed;
      model.total_run_s += took;
      model.total_stall_s += reading.stall_s;
      if (!cold)
        network.latency.Note(network.ladder()[rung].seconds, took);
      else if (reading.read_s > 1e-3 && reading.nbytes > 1e6)
        network.storage_rate += (reading.nbytes / reading.read_s - network.storage_rate) / 2;
      if (request.deadline && Now() > *request.deadline) ++model.missed;
      network.cold = false;
    }
    Complete(request);
  }
  if (network.stopping) ParkNow(network);
  SettleLane(number);
  try {
    ShareAnew();
  } catch (const std::exception&) {
    // The shares in use are right, too.
  }
  wake_.notify_all();
  done_.notify_all();
}

}  // namespace flexcomp

// Requests of a pool: submission and completion.
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
constexpr double kQuick = 2e-3;  // seconds for which a caller can do without its thread

// A bit after `seconds` of the pool's clock, or 30 years of it: its nanoseconds have 64 bits, and a deadline may be any
// number.
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

RequestQueue::SecondsOf Pool::SecondsInOrder() const {
  return [this, loaded = std::vector<const Network*>()](const Queued& request) mutable {
    const Network& network = *roster_.models().at(request.model)->network;
    const bool first = std::ranges::find(loaded, &network) == loaded.end();
    if (first) loaded.push_back(&network);
    return (first ? network.LoadingSeconds() : 0) + network.latency.Safe(network.SecondsOf(network.target, request.shape));
  };
}

Pool::Submitted Pool::Submit(uint64_t ticket, uint32_t number, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors) {
  if (options.deadline_s && !(std::isfinite(*options.deadline_s) && *options.deadline_s > 0))
    RaiseError("InputError", "a deadline of ", *options.deadline_s * 1e3, " ms was given: it must be above 0");
  RequireThisProcess();
  Lock lock(mutex_);
  RequireOpen();
  const double now = Now();
  const std::shared_ptr<Model> model = roster_.Find(number);
  if (!model) return {Admission::kGone};
  const std::string& name = model->name;
  Network& network = *model->network;
  if (tensors.size() != network.ports())
    RaiseError("InputError", name, " takes ", network.ports(), " tensors, for its inputs and outputs, not ", tensors.size());
  Lane& lane = *lanes_[network.lane];
  const double free = std::max(now, lane.free);
  const auto shape = static_cast<uint32_t>(network.ShapeOf(tensors));
  const double predicted = network.SecondsOf(network.target, shape);
  const auto count = [&]() noexcept {
    ++model->requests;
    network.shape_mix->Note(shape);
    model->rate.Note(now);
  };
  const auto refuse = [&](const char* reason, const std::string& message, double retry) {
    Submitted refused{Admission::kRefused, {reason, message, std::max(retry, 0.0)}};
    count();
    ++model->refused;
    return refused;
  };
  if (model->waiting >= options_.most_waiting)
    return refuse("queue", std::to_string(model->waiting) + " requests of " + name + " wait already, as many as may",
                  free - now + lane.queue.Seconds(SecondsInOrder()) / 2);

  Request request;
  request.model = model;
  request.deadline = options.deadline_s ? options.deadline_s : model->options.deadline_s;
  if (request.deadline) *request.deadline += now;
  request.late = options.late;
  request.collected = options.collected;
  request.tensors = std::move(tensors);
  const double likely = network.LoadingSeconds() + network.latency.Likely(predicted);
  const double due = request.deadline.value_or(RequestQueue::Due(now, likely, model->options.urgency));
  request.queued = {ticket, number, shape, now, due, options.late ? std::nullopt : request.deadline, model->options.urgency};
  RequestQueue::Outlook outlook = lane.queue.Look(request.queued, free, SecondsInOrder());
  // One that may be late makes room instead.
  while (!request.queued.deadline && outlook.spoiled != nullptr) {
    request.queued.due = outlook.spoiled->due;
    request.queued.urgency = 0;  // after the request
    outlook = lane.queue.Look(request.queued, free, SecondsInOrder());
  }
  // An estimate that has become too large would refuse every request that could correct it: now and then an idle lane
  // tries.
  const bool tries = lane.running == nullptr && lane.queue.empty() && request.deadline && now - network.noted_at > kTrusted &&
                     predicted < *request.deadline - now;
  if (!outlook.meets && !tries) {
    const std::string ends = "would end in " + Milliseconds(outlook.ends - now);
    return refuse("deadline",
                  outlook.spoiled != nullptr ? "a request of " + name + " would make another miss its deadline"
                                             : "a request of " + name + " " + ends + ", behind its deadline of " + Milliseconds(*request.deadline - now),
                  outlook.spoiled != nullptr ? likely : outlook.ends - *request.deadline);
  }
  lane.queue.MakeRoom();
  const std::shared_ptr<Request> submitted = requests_.Insert(ticket, std::move(request));
  count();
  ++model->waiting;
  if (submitted->queued.deadline && *submitted->queued.deadline < NextDeadline()) collect_.notify_one();
  lane.queue.Push(submitted->queued);
  if (options.here && RunsHere(network.lane)) {
    submitted->here = true;
    const std::shared_ptr<Request> run = RunFirst(network.lane, lock);
    const Admission admission = run->done() ? Admission::kDone : Admission::kWaits;
    lock.unlock();
    return {admission};
  }
  wake_.notify_all();
  return {Admission::kWaits};
}

// One lane has all cores, so that any thread may run its requests. A plan may be of a faster storage than this: a model
// not yet seen to be quick could hold up the caller.
bool Pool::RunsHere(uint32_t number) noexcept {
  Lane& lane = *lanes_[number];
  if (lanes_.size() > 1 || lane.queue.size() != 1 || !Dispatchable(number)) return false;
  const Request& request = FirstOf(lane);
  const Network& network = *request.model->network;
  return !network.cold && !network.broken && network.latency.noted() &&
         network.latency.Likely(network.SecondsOf(network.rung, request.queued.shape)) <= kQuick;
}

std::optional<Answer> Pool::Run(uint32_t model, const RequestOptions& options, std::vector<tvm::ffi::Any> tensors) {
  const uint64_t ticket = Ticket();
  Submitted submitted = Submit(ticket, model, options, std::move(tensors));
  if (submitted.admission == Admission::kGone) return std::nullopt;
  if (submitted.admission == Admission::kRefused) return Answer{.refusal = std::move(submitted.refusal)};
  struct Forgetting {
    Pool& pool;
    uint64_t ticket;
    ~Forgetting() { pool.Forget(ticket); }
  } forgetting{*this, ticket};
  return Wait(ticket);
}

Answer Pool::Wait(uint64_t ticket) {
  RequireThisProcess();
  Lock lock(mutex_);
  const std::shared_ptr<Request> request = requests_.Find(ticket);
  if (!request) RaiseError("InputError", "there is no request ", ticket);
  while (!request->done()) {
    if (request->running || !request->queued.deadline) {
      done_.wait(lock);
      continue;
    }
    done_.wait_until(lock, Behind(*request->queued.deadline));
    // The request is dropped after its deadline, also when a long inference was in front.
    if (!request->done() && !request->running) DropLate(LaneOf(*request));
  }
  lock.unlock();  // the request is final, and the tensors may be released here
  return AnswerOf(*request);
}

bool Pool::Cancel(uint64_t ticket) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Request> request = requests_.Find(ticket);
  if (!request || request->done()) return false;
  CancelNow(*request);
  return true;
}

void Pool::CancelRunning(uint32_t model) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Model> found = roster_.Find(model);
  if (!found || found->running == 0) return;
  requests_.ForEach([&](Request& request) noexcept {
    if (request.model == found && request.running) CancelNow(request);
  });
}

void Pool::Forget(uint64_t ticket) noexcept {
  if (!process_.IsThisProcess()) return;
  std::shared_ptr<Request> forgotten;  // goes when the lock is open: its tensors may be others' to free
  const std::lock_guard lock(mutex_);
  forgotten = requests_.Forget(ticket);
  if (forgotten && !forgotten->done()) CancelNow(*forgotten);
}

void Pool::CancelNow(Request& request) noexcept {
  if (request.running) {
    request.unwanted = true;
    request.model->network->Cancel();  // or the inference ends by itself
    return;
  }
  LaneOf(request).queue.Remove(request.queued.id);
  ++request.model->cancelled;
  EndWaiting(request, Request::End::kCancelled);
  wake_.notify_all();
}

uint64_t Pool::Collect() {
  RequireThisProcess();
  Lock lock(mutex_);
  while (!ended_ && requests_.first_done() == 0) {
    const double next = NextDeadline();
    if (next == INFINITY) {
      collect_.wait(lock);
    } else {
      collect_.wait_until(lock, Behind(next));
      for (const auto& lane : lanes_) DropLate(*lane);
    }
  }
  return requests_.first_done();
}

void Pool::End(Request& request, Request::End end) noexcept {
  if (requests_.End(request, end)) collect_.notify_one();
  done_.notify_all();
}

void Pool::EndWaiting(Request& request, Request::End end) noexcept {
  --request.model->waiting;
  End(request, end);
}

void Pool::FailWaiting(const Model* model, Request::End end) noexcept {
  for (const auto& lane : lanes_)
    lane->queue.TakeOut([&](const Queued& queued) noexcept {
      Request& request = *requests_.At(queued.id);
      if (model != nullptr && request.model.get() != model) return false;
      ++request.model->failed;
      EndWaiting(request, end);
      return true;
    });
}

void Pool::DropLate(Lane& lane) noexcept {
  lane.queue.TakeOut([&, now = Now()](const Queued& queued) noexcept {
    if (!queued.deadline || *queued.deadline >= now) return false;
    Request& request = *requests_.At(queued.id);
    ++request.model->missed;
    ++request.model->dropped;
    EndWaiting(request, Request::End::kLate);
    return true;
  });
}

double Pool::NextDeadline() const noexcept {
  double next = INFINITY;
  for (const auto& lane : lanes_) next = std::min(next, lane->queue.NextDeadline());
  return next;
}

}  // namespace flexcomp

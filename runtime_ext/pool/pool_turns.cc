// How the requests of a pool take their turns. Nothing in here throws: lanes go on whatever happens.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/translated.h"
#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {
namespace {

// Without a copy of its kind, for which there may be no memory.
bool IsOf(std::string_view kind, const std::optional<tvm::ffi::Error>& error) noexcept {
  if (!error) return false;
  const TVMFFIByteArray& own = static_cast<const tvm::ffi::ErrorObj*>(error->get())->kind;
  return std::string_view(own.data, own.size) == kind;
}

}  // namespace

void Pool::Main(uint32_t number) noexcept {
  Lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closed_ || Dispatchable(number); });
    if (closed_) return;
    std::shared_ptr<Request> request = RunFirst(number, lock);
    if (!request->forgotten) continue;  // The caller that forgets the request frees its tensors.
    lock.unlock();
    request.reset();
    lock.lock();
  }
}

bool Pool::Dispatchable(uint32_t number) noexcept {
  Lane& lane = *lanes_[number];
  DropLate(lane);
  if (lane.queue.empty() || lane.running != nullptr) return false;
  const Network& network = *FirstOf(lane).model->network;
  if (network.broken) return true;  // which its requests are told
  const ShareRung& rung = network.ladder()[network.target];
  const uint64_t more = rung.working > lane.memory.nbytes() ? rung.working - lane.memory.nbytes() : 0;
  uint64_t shared = 0;  // that nobody has claimed yet
  if (network.target_common)
    for (const auto& [index, weights] : network.target_common->weights) shared += weights->holders == 0 ? weights->nbytes : 0;
  return Claimed() - network.claimed + network.target_kept() + more + shared <= budget_;
}

std::optional<tvm::ffi::Error> Pool::RunNow(Lane& lane, Network& network, const Request& request, Lock& lock, double& took,
                                            Network::Reading& reading) noexcept {
  if (!network.settled())
    if (auto error = ParkNow(network)) return error;  // parking was impossible when the share changed
  if (network.broken) return network.broken;
  network.claimed = network.kept();
  if (auto error = Caught([&] { Hold(network); })) return error;
  const auto& networks = roster_.networks();
  const bool alone = std::ranges::none_of(networks, [&](const auto& other) { return other->lane == network.lane && other.get() != &network; });
  const bool reads = network.cold || network.rung + 1 < network.ladder().size();  // otherwise all stays
  const bool again = lane.queue.empty() ? alone : FirstOf(lane).model->network.get() == &network;
  if (lane.last != &network) Leave(lane);
  if (auto error = Caught([&] { lane.memory.Grow(network.ladder()[network.rung].working); })) return error;
  const double started = Now();
  if (auto error = MakeShared(network, lock)) return error;
  if (request.unwanted) return Caught([] { Raise("CancelledError", "the request was cancelled"); });
  lock.unlock();
  auto error = Caught([&] {
    network.ReadAhead(again);
    network.Run(request.tensors);
    took = Now() - started;
  });
  if (!error && reads) reading = network.LastReading();
  lock.lock();
  return error;
}

void Pool::NoteRun(Request& request, Network& network, bool cold, const Network::Reading& reading) noexcept {
  Model& model = *request.model;
  const Completion& run = request.completion;
  ++model.completed;
  model.total_run_s += run.run_s;
  model.total_stall_s += reading.stall_s;
  if (!cold)
    network.latency.Note(network.SecondsOf(run.rung, request.queued.shape), run.run_s);
  else if (reading.read_s > 1e-3 && reading.nbytes > 1e6)
    network.storage_rate += (reading.nbytes / reading.read_s - network.storage_rate) / 2;
  if (request.deadline && Now() > *request.deadline) ++model.missed;
}

std::shared_ptr<Request> Pool::RunFirst(uint32_t number, Lock& lock) noexcept {
  Lane& lane = *lanes_[number];
  const std::shared_ptr<Request> request = requests_.At(lane.queue.first().id);
  Model& model = *request->model;
  Network& network = *model.network;
  const bool cold = network.cold || !network.settled();
  const double begin = Now();
  lane.queue.Remove(request->queued.id);
  lane.running = &network;
  lane.free = begin + network.LoadingSeconds() + network.latency.Safe(network.SecondsOf(network.target, request->queued.shape));
  request->running = true;
  --model.waiting;
  ++model.running;
  double took = 0;
  Network::Reading reading;
  std::optional<tvm::ffi::Error> error = RunNow(lane, network, *request, lock, took, reading);

  --model.running;
  lane.running = nullptr;
  lane.last = &network;
  lane.free = 0;
  const bool stopped = IsOf("Stopped", error);
  if (stopped && !closed_ && !request->unwanted) {
    ++model.restarts;
    ++model.waiting;
    request->running = false;
    request->here = false;  // the turn comes when there is memory for the inference
    lane.queue.Push(request->queued);
  } else {
    request->completion = {begin - request->queued.arrived, took, network.rung};
    model.wait_s = request->completion.wait_s;
    model.run_s = took;
    network.noted_at = Now();
    network.cold = error.has_value() && (cold || !IsOf("CancelledError", error));  // what stayed stays then
    if (request->unwanted) {
      ++model.cancelled;
      End(*request, Request::End::kCancelled);
    } else if (!error) {
      NoteRun(*request, network, cold, reading);
      End(*request, Request::End::kRan);
    } else if (stopped) {
      End(*request, Request::End::kClosed);
    } else {
      ++model.failed;
      request->error = std::move(error);
      End(*request, Request::End::kFailed);
    }
  }
  if (network.stopping) ParkNow(network);
  SettleLane(number);
  ShareAnew(false);
  wake_.notify_all();
  done_.notify_all();
  return request;
}

}  // namespace flexcomp

// The memory of a pool's models, and how that changes.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/translated.h"
#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {

uint64_t Pool::Claimed() const noexcept {
  uint64_t sum = shared_nbytes_;
  for (const auto& lane : lanes_) sum += lane->memory.nbytes();
  for (const auto& network : roster_.networks()) sum += network->claimed;
  return sum;
}

uint64_t Pool::LaneTarget(uint32_t lane) const noexcept {
  uint64_t most = 0;
  for (const auto& network : roster_.networks())
    if (network->lane == lane && !network->broken) most = std::max(most, network->ladder()[network->target].working);
  return most;
}

void Pool::Use(Roster::Targets&& targets) noexcept {
  for (size_t i = 0; i < targets.rungs.size(); ++i) {
    Network& network = *roster_.networks()[i];
    network.target = targets.rungs[i];
    network.target_common = std::move(targets.common[i]);
  }
  ++reshared_;
  shared_at_ = Now();
}

void Pool::ShareAnew(bool at_once) noexcept {
  constexpr double kEvery = 1;
  const double now = Now();
  if ((!at_once && now - shared_at_ < kEvery) || roster_.networks().empty()) return;
  shared_at_ = now;
  try {
    uint64_t least = 0;
    auto targets = roster_.FindShares(budget_, options_.by_swapnet, at_once, now, least);
    if (!targets || (!at_once && !roster_.Pays(*targets, now))) return;
    Use(*std::move(targets));
  } catch (const std::exception&) {
    return;  // the shares in use are right, too
  }
  Settle();
}

void Pool::Settle() noexcept {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) SettleLane(lane);
  wake_.notify_all();
}

void Pool::SettleLane(uint32_t number) noexcept {
  Lane& lane = *lanes_[number];
  for (const auto& network : roster_.networks())
    if (network->lane == number && network.get() != lane.running && !network->settled()) ParkNow(*network);
  const uint64_t most = LaneTarget(number);
  if (lane.running != nullptr || lane.memory.nbytes() <= most) return;
  Leave(lane);
  lane.memory.Shrink(most);
}

void Pool::Hold(Network& network) {
  if (network.holds || !network.common) return;
  const auto unclaimed = [&](const auto& function) {
    for (const auto& [number, shared] : network.common->weights)
      if (shared->holders == 0) function(*shared);
  };
  try {
    unclaimed([](SharedWeights& shared) { shared.memory->Open(shared.at, shared.nbytes); });
  } catch (...) {
    unclaimed([](SharedWeights& shared) { shared.memory->Shut(shared.at, shared.nbytes); });
    throw;
  }
  for (const auto& [number, shared] : network.common->weights)
    if (shared->holders++ == 0) shared_nbytes_ += shared->nbytes;
  network.holds = true;
}

void Pool::Release(Network& network) noexcept {
  if (!std::exchange(network.holds, false)) return;
  for (const auto& [number, shared] : network.common->weights) {
    if (--shared->holders > 0) continue;
    shared_nbytes_ -= shared->nbytes;
    shared->contents = SharedWeights::Contents::kNone;
    shared->memory->Shut(shared->at, shared->nbytes);
  }
}

std::optional<tvm::ffi::Error> Pool::MakeShared(Network& network, Lock& lock) noexcept {
  using Contents = SharedWeights::Contents;
  if (!network.common) return std::nullopt;
  for (const auto& [number, shared] : network.common->weights) {
    made_.wait(lock, [&shared = shared] { return shared->contents != Contents::kBeingMade; });
    if (shared->contents == Contents::kThere) continue;
    shared->contents = Contents::kBeingMade;
    lock.unlock();
    auto error = network.MakeShared(number);
    lock.lock();
    shared->contents = error ? Contents::kNone : Contents::kThere;
    made_.notify_all();
    if (error) return error;
  }
  return std::nullopt;
}

void Pool::Break(Network& network, const tvm::ffi::Error& error) noexcept {
  network.Close();
  network.claimed = 0;
  Release(network);
  network.common = network.target_common = nullptr;
  network.broken = KeptOutOfMemory();
  try {
    network.broken.emplace("ExecutionError", error.message() + ": remove the model from the pool and add it again", "");
  } catch (const std::bad_alloc&) {
    network.broken = error;
  }
  shared_at_ = 0;  // the others may have its share soon
}

void Pool::Leave(Lane& lane) noexcept {
  Network* const last = std::exchange(lane.last, nullptr);
  if (last == nullptr || last->broken) return;
  if (const auto error = last->LeaveLane()) Break(*last, *error);  // the network may still read into the lane
}

std::optional<tvm::ffi::Error> Pool::ParkNow(Network& network) noexcept {
  std::optional<tvm::ffi::Error> error;
  if (!network.broken) error = network.Park(network.target, network.target_common.get());
  if (!error) {
    Release(network);
    network.rung = network.target;
    network.common = network.target_common;
  } else if (const auto worse = network.Park(network.rung, network.common.get())) {
    Break(network, *worse);  // the network must not hold more than its share
  } else {
    Release(network);
  }
  network.stopping = false;
  network.claimed = std::min(network.claimed, network.kept());  // weights that were kept, and still are
  network.cold = true;
  return error;
}

}  // namespace flexcomp

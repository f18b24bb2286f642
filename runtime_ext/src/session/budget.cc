// The rung that a session uses, and changes of rungs.
#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "memory/carry.h"
#include "session/arena_use.h"
#include "session/session.h"

namespace flexcomp {

std::vector<size_t> Session::RungsFor(uint64_t budget) const {
  if (lane_) return lane_ladder_[RungFor(program(), budget)].rungs;
  std::vector<size_t> rungs;
  for (const auto& one : programs_.programs()) rungs.push_back(RungFor(*one, budget));
  return rungs;
}

Places Session::PlacesOf(size_t rung) const noexcept {
  const uint64_t border = current().rungs[rung].working;
  std::byte* const base = memory_->base() + BeginOf(shape_, rung, sharing_, nbytes_);
  return lane_ ? Places(lane_.base, base, border, sharing_.pieces()) : Places(base, base + border, border);
}

uint64_t Session::NbytesFor(std::span<const size_t> rungs, const Sharing& sharing) const noexcept {
  uint64_t most = 0;
  for (size_t i = 0; i < rungs.size(); ++i) most = std::max(most, NbytesOf(i, rungs[i]));
  return most - sharing.freed();
}

void Session::Use(size_t rung) noexcept {
  rung_ = wanted_[shape_] = rung;
  abandoned_.reset();
  OpenTapes();
  UseCalls();
  const auto looked_at = [](const Call& call) { return call.checks != 0 || call.fetch != nullptr; };
  replays_ = processor_->Replays() && !now().calls.calls().empty() && std::ranges::none_of(now().calls.calls(), looked_at);
}

void Session::UseCalls() noexcept {
  steps_ = loader_->tape().steps;
  now().calls.Prepare(current(), current().plan(rung_), steps_, PlacesOf(rung_));
}

void Session::OpenTapes() noexcept {
  const Omitted carried{carry_.loads, carry_.layers};
  now().tapes.Open(current().plan(rung_), file_->queued(), carry_.loads.empty() ? sharing_.omitted() : carried);
  processor_->Use(now().tapes.tapes());
  now().preparer.Use(PlacesOf(rung_));
  const uint64_t begin = BeginOf(shape_, rung_, sharing_, nbytes_);
  loader_->Open(now().tapes.tapes(), PlacesOf(rung_), current().rungs[rung_].working, memory_->fresh(begin, nbytes_ - begin), &now().preparer);
}

PlacedRung Session::PlacedAt(size_t shape, size_t rung, const Sharing& sharing, uint64_t nbytes) const noexcept {
  const Program& program = programs_[shape];
  return {program.plan(rung), program, BeginOf(shape, rung, sharing, nbytes), lane_ ? program.rungs[rung].working : 0, sharing};
}

Carry Session::CarryTo(const Held& held, const PlacedRung& next, const Carried& states) const noexcept {
  if (!held.any) return {};
  try {
    const PlacedRung plan = PlacedNow();
    Carry carry = FindCarry({plan, held.prepared, abandoned_ ? &left_ : nullptr}, next, states);
    const Omitted shared = next.sharing.omitted();
    for (size_t i = 0; i < shared.loads.size(); ++i) carry.loads[i] = std::max(carry.loads[i], shared.loads[i]);
    for (size_t i = 0; i < shared.layers.size(); ++i) carry.layers[i] |= shared.layers[i];
    return carry;
  } catch (const std::bad_alloc&) {
    return {};  // weights are read again
  }
}

bool Session::Change(size_t shape, size_t rung, uint64_t nbytes, Sharing* sharing) noexcept {
  const Held held = HeldNow();
  loader_->GiveUp();  // reads for the next inference may be in flight
  const auto resize = [&](const PlacedRung& next, uint64_t to_nbytes) {
    const Carried states = StatesTo(next);
    carry_ = CarryTo(held, next, states);
    const std::span<const Carried> alone(&states, states.nbytes > 0 ? 1 : 0);
    return memory_->Resize(to_nbytes, carry_.moves.empty() ? alone : carry_.moves, abandoned_.has_value());
  };
  const bool has_room = resize(PlacedAt(shape, rung, sharing != nullptr ? *sharing : sharing_, nbytes), nbytes);
  if (has_room) {
    if (shape_ != shape) shape_ = shape;  // SetBudget changes none: calls look at the shape without the lock
    nbytes_ = nbytes;
    if (sharing != nullptr) std::swap(sharing_, *sharing);
  } else {
    rung = rung_;
    resize(PlacedAt(shape_, rung, sharing_, nbytes_), nbytes_);
  }
  left_.clear();
  Use(rung);
  if (const Carried states = States(); states.nbytes > 0 && !states_written_) memory_->Clear(memory_->base() + states.from, states.nbytes);
  return has_room;
}

void Session::SwitchToWanted() noexcept {
  const uint64_t nbytes = NbytesFor(wanted_, sharing_);
  if (wanted_[shape_] != rung_ || nbytes != nbytes_ || abandoned_) Change(shape_, wanted_[shape_], nbytes);
}

void Session::UseShape(size_t shape) {
  const size_t rung = wanted_[shape];
  const uint64_t nbytes = NbytesOf(shape, rung);
  if (nbytes > nbytes_) memory_->RaiseRefusal(nbytes);  // as it was when the budget grew
  Change(shape, rung, nbytes_);
}

void Session::Attach() {
  if (memory_->Attach()) Use(rung_);
}

bool Session::Abandon() noexcept {
  // A thread that copies read bytes would ask for the memory again.
  if (!file_->queued()) return false;
  loader_->Halt();  // before the memory goes: later reads would bring some back
  const Held held = HeldNow();
  const size_t rung = wanted_[shape_];
  const PlacedRung next = PlacedAt(shape_, rung, sharing_, NbytesFor(wanted_, sharing_));
  const Carried states = StatesTo(next);
  std::vector<Carried> moves = CarryTo(held, next, states).moves;
  if (!moves.empty())
    left_ = std::move(moves);
  else
    left_.assign(states.nbytes > 0 ? 1 : 0, states);  // there is room for one
  std::ranges::sort(left_, {}, &Carried::from);
  if (!memory_->Discard(left_)) return false;
  rung_ = rung;
  abandoned_ = held;
  return true;
}

const RungHead& Session::SetBudget(uint64_t budget) {
  RequireThisProcess();
  if (lane_) Raise("InputError", "a session in a lane is parked: it has no budget");
  const std::vector<size_t> rungs = RungsFor(budget);
  for (size_t i = 0; i < rungs.size(); ++i) shapes_[i]->checker.Check(rungs[i]);
  std::unique_lock lock(state_mutex_);
  RequireOpen();
  processor_->RequireAlive();
  const size_t shape = shape_, chosen = rungs[shape];
  const uint64_t nbytes = NbytesFor(rungs, sharing_);
  const bool reserved = memory_->Reserve(nbytes);
  if (!reserved && !running_ && !Change(shape, chosen, nbytes)) memory_->RaiseRefusal(nbytes);
  std::ranges::copy(rungs, wanted_.begin());
  if (abandoned_ && reserved) rung_ = chosen;
  // Of several shapes another one may have to give memory back.
  const bool others = shapes_.size() > 1 && nbytes < nbytes_;
  if (running_ && (chosen < rung_ || others)) {
    interrupt_ = true;
    loader_->Interrupt();
  }
  // Until the memory is back, or another call wants something else.
  const auto is_back = [&] { return rung_ <= chosen && (!others || abandoned_ || nbytes_ <= nbytes); };
  state_changed_.wait(lock, [&] { return !running_ || shape_ != shape || is_back() || wanted_[shape] != chosen; });
  if (!running_ && loader_ && !abandoned_ && (wanted_[shape_] == rung_ || !loader_->Busy() || !Abandon())) SwitchToWanted();
  return programs_[shape].rungs[chosen];
}

}  // namespace flexcomp

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

size_t Session::ChooseRung(const Program& program, uint64_t budget) {
  const std::vector<RungHead>& rungs = program.rungs;
  if (budget < rungs.front().budget)
    RaiseError("BudgetError", "a budget of ", budget, " bytes was asked for, the smallest that ", program.model,
               " was built for is ", rungs.front().budget, " bytes");
  size_t chosen = 0;
  while (chosen + 1 < rungs.size() && rungs[chosen + 1].budget <= budget) ++chosen;
  return chosen;
}

std::vector<size_t> Session::RungsFor(uint64_t budget) const {
  if (lane_) return lane_ladder_[ChooseRung(program(), budget)].rungs;
  std::vector<size_t> rungs;
  for (const auto& one : programs_.programs()) rungs.push_back(ChooseRung(*one, budget));
  return rungs;
}

Places Session::PlacesOf(size_t rung) const noexcept {
  const uint64_t border = current().rungs[rung].working;
  std::byte* const base = memory_->base() + BeginOf(shape_, rung, nbytes_);
  return lane_ ? Places(lane_.base, base, border, sharing_.pieces()) : Places(base, base + border, border);
}

uint64_t Session::OwnNbytes(size_t rung, const Sharing& sharing) const noexcept {
  uint64_t most = NbytesOf(shape_, rung) - sharing.freed();
  for (size_t i = 0; i < shapes_.size(); ++i)
    if (i != shape_) most = std::max(most, NbytesOf(i, shapes_[i]->wanted));
  return most;
}

void Session::Use(size_t rung) noexcept {
  rung_ = wanted_ = held_rung_ = rung;
  abandoned_ = false;
  now().preparer.Use(PlacesOf(rung));
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
  const uint64_t begin = BeginOf(shape_, rung_, nbytes_);
  loader_->Open(now().tapes.tapes(), PlacesOf(rung_), current().rungs[rung_].working, memory_->fresh(begin, nbytes_ - begin), &now().preparer);
}

PlacedRung Session::PlacedAt(size_t shape, size_t rung, const Sharing& sharing, uint64_t nbytes) const noexcept {
  const Program& program = programs_[shape];
  return {program.plan(rung), program, BeginOf(shape, rung, nbytes), lane_ ? program.rungs[rung].working : 0, sharing};
}

Carry Session::CarryTo(const Held& held, size_t shape, size_t rung, const Sharing& sharing, uint64_t nbytes, const Carried& states) const noexcept {
  if (!held.any) return {};
  const PlacedRung plan = PlacedAt(shape_, held_rung_, sharing_, nbytes_), next = PlacedAt(shape, rung, sharing, nbytes);
  try {
    Carry carry = FindCarry({plan, held.prepared, abandoned_ ? &left_ : nullptr}, next, states);
    const Omitted shared = sharing.omitted();
    for (size_t i = 0; i < shared.loads.size(); ++i) carry.loads[i] = std::max(carry.loads[i], shared.loads[i]);
    for (size_t i = 0; i < shared.layers.size(); ++i) carry.layers[i] |= shared.layers[i];
    return carry;
  } catch (const std::bad_alloc&) {
    return {};  // weights are read again
  }
}

bool Session::Change(size_t shape, size_t rung, uint64_t nbytes, Sharing* sharing) noexcept {
  const Held held = HeldNow();
  loader_->Abort();  // reads for the next inference may be in flight
  const auto resize = [&](size_t to_shape, size_t to_rung, const Sharing& to_sharing, uint64_t to_nbytes) {
    const Carried states = StatesTo(to_shape, to_rung, to_sharing, to_nbytes);
    carry_ = CarryTo(held, to_shape, to_rung, to_sharing, to_nbytes, states);
    const std::span<const Carried> alone(&states, states.nbytes > 0 ? 1 : 0);
    return memory_->Resize(to_nbytes, carry_.moves.empty() ? alone : carry_.moves, abandoned_);
  };
  const bool has_room = resize(shape, rung, sharing != nullptr ? *sharing : sharing_, nbytes);
  if (has_room) {
    if (shape_ != shape) shape_ = shape;  // SetBudget changes none: calls look at the shape without the lock
    nbytes_ = nbytes;
    if (sharing != nullptr) std::swap(sharing_, *sharing);
  } else {
    rung = rung_;
    resize(shape_, rung, sharing_, nbytes_);
  }
  left_.clear();
  Use(rung);
  if (const Carried states = States(); states.nbytes > 0 && !states_written_) memory_->Clear(memory_->base() + states.from, states.nbytes);
  return has_room;
}

bool Session::MakeRoom(size_t rung, uint64_t nbytes) {
  if (memory_->Reserve(nbytes)) return true;
  if (running_) return false;
  if (!Change(shape_, rung, nbytes)) memory_->RaiseRefusal(nbytes);
  return true;
}

void Session::SwitchToWanted() noexcept {
  const uint64_t nbytes = OwnNbytes(wanted_);
  if (wanted_ != rung_ || nbytes != nbytes_ || abandoned_) Change(shape_, wanted_, nbytes);
}

void Session::UseShape(size_t shape) {
  if (shape == shape_) return;
  SwitchToWanted();  // the memory is that for the budget
  const size_t rung = shapes_[shape]->wanted;
  const uint64_t nbytes = NbytesOf(shape, rung);
  if (nbytes > nbytes_) memory_->RaiseRefusal(nbytes);  // as it was when the budget grew
  Change(shape, rung, nbytes_);
}

void Session::Settle() {
  if (!loader_->Settles()) return;
  ArenaUse use(*this);
  if (loader_->Settles()) TryWarm();  // a budget that shrank meanwhile needs no weights
}

void Session::Attach() {
  if (memory_->Attach()) Use(rung_);
}

bool Session::Abandon() noexcept {
  // A thread that copies read bytes would ask for the memory again.
  if (!file_->queued()) return false;
  loader_->Halt();  // before the memory goes: later reads would bring some back
  const Held held = HeldNow();
  const uint64_t nbytes = OwnNbytes(wanted_);
  const Carried states = StatesTo(shape_, wanted_, sharing_, nbytes);
  std::vector<Carried> moves = CarryTo(held, shape_, wanted_, sharing_, nbytes, states).moves;
  if (!moves.empty())
    left_ = std::move(moves);
  else
    left_.assign(states.nbytes > 0 ? 1 : 0, states);  // there is room for one
  std::ranges::sort(left_, {}, &Carried::from);
  if (!memory_->Discard(left_)) return false;
  rung_ = wanted_;
  abandoned_held_ = held;
  abandoned_ = true;
  return true;
}

const RungHead& Session::SetBudget(uint64_t budget) {
  RequireThisProcess();
  if (lane_) Raise("InputError", "a session in a lane is parked: it has no budget");
  const std::vector<size_t> of_shapes = RungsFor(budget);
  for (size_t i = 0; i < shapes_.size(); ++i) shapes_[i]->checker.Check(of_shapes[i]);
  std::unique_lock lock(state_mutex_);
  RequireOpen();
  processor_->RequireAlive();
  const size_t shape = shape_, chosen = of_shapes[shape];
  uint64_t nbytes = 0;
  for (size_t i = 0; i < of_shapes.size(); ++i) nbytes = std::max(nbytes, programs_[i].rungs[of_shapes[i]].arena);
  const bool has_room = MakeRoom(chosen, nbytes);
  for (size_t i = 0; i < shapes_.size(); ++i) shapes_[i]->wanted = of_shapes[i];
  wanted_ = chosen;
  if (abandoned_ && has_room) rung_ = chosen;
  // Of several shapes another one may have to give memory back.
  const bool others = shapes_.size() > 1 && nbytes < nbytes_;
  if (running_ && (chosen < rung_ || others)) {
    interrupt_ = true;
    loader_->Interrupt();
  }
  // Until the memory is back, or another call wants something else.
  const auto is_back = [&] { return rung_ <= chosen && (!others || abandoned_ || nbytes_ <= nbytes); };
  state_changed_.wait(lock, [&] { return !running_ || shape_ != shape || is_back() || wanted_ != chosen; });
  if (!running_ && loader_ && !abandoned_ && (wanted_ == rung_ || !loader_->Busy() || !Abandon())) SwitchToWanted();
  return programs_[shape].rungs[chosen];
}

}  // namespace flexcomp

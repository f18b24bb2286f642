// The rung that a session uses, and changes of rungs.
#include <algorithm>
#include <cstring>
#include <mutex>

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

void Session::Use(size_t rung, Omitted there) noexcept {
  rung_ = wanted_ = states_rung_ = rung;
  abandoned_ = false;
  now().preparer.Use(PlacesOf(rung));
  OpenTapes(there);
  UseCalls();
  const auto looked_at = [](const Call& call) { return call.checks != 0 || call.fetch != nullptr; };
  replays_ = processor_->Replays() && !now().calls.calls().empty() && std::ranges::none_of(now().calls.calls(), looked_at);
}

void Session::UseCalls() noexcept {
  steps_ = loader_->tape().steps;
  now().calls.Prepare(current(), current().plan(rung_), steps_, PlacesOf(rung_));
}

void Session::OpenTapes(Omitted there) noexcept {
  now().tapes.Open(current().plan(rung_), file_->queued(), sharing_.empty() ? there : sharing_.omitted());
  processor_->Use(now().tapes.tapes());
  const uint64_t begin = BeginOf(shape_, rung_, nbytes_);
  loader_->Open(now().tapes.tapes(), PlacesOf(rung_), current().rungs[rung_].working, memory_->fresh(begin, nbytes_ - begin), &now().preparer);
}

bool Session::MakeRoom(size_t rung, uint64_t nbytes) {
  if (memory_->Reserve(nbytes)) return true;
  if (running_) return false;
  loader_->Abort();  // reads for the next inference may be in flight
  if (!memory_->Resize(nbytes, CarriedAlong(rung, nbytes))) memory_->RaiseRefusal(nbytes);
  nbytes_ = nbytes;
  Use(rung);
  return true;
}

void Session::SwitchToWanted() noexcept {
  const uint64_t nbytes = OwnNbytes(wanted_);
  if (wanted_ == rung_ && nbytes == nbytes_ && !abandoned_) return;
  loader_->Abort();  // reads for the next inference may be in flight
  if (memory_->Resize(nbytes, CarriedAlong(wanted_, nbytes))) {
    nbytes_ = nbytes;
  } else {
    wanted_ = rung_;
    memory_->Resize(nbytes_, CarriedAlong(rung_, nbytes_));
  }
  Use(wanted_);
}

void Session::UseShape(size_t shape) {
  if (shape == shape_) return;
  SwitchToWanted();  // the memory is that for the budget
  const size_t rung = shapes_[shape]->wanted;
  const uint64_t nbytes = NbytesOf(shape, rung);
  if (nbytes > nbytes_) memory_->RaiseRefusal(nbytes);  // as it was when the budget grew
  loader_->GiveUpAhead();
  const PlacedRung next{programs_[shape].plan(rung), programs_[shape], OriginOf(shape, rung, nbytes_)};
  Carried states;
  if (states_written_ && !current().states.empty())
    states = {CarriedTo(states_rung_, nbytes_).from, BeginOf(shape, rung, nbytes_) + StatesAt(shape, rung, sharing_), CarriedTo(states_rung_, nbytes_).nbytes};
  Carry carry;
  if (loader_->Filled())
    carry = FindCarry({current().plan(rung_), current(), OriginOf(shape_, rung_, nbytes_)}, next, states);
  else if (states.nbytes > 0)
    carry.moves.push_back(states);
  loader_->Abort();
  for (const Carried& one : carry.moves) std::memmove(memory_->base() + one.to, memory_->base() + one.from, one.nbytes);
  shape_ = shape;
  Use(rung, {carry.loads, carry.layers});
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
  const Carried states = CarriedAlong(states_rung_, nbytes_);
  if (!memory_->Discard(states)) return false;
  rung_ = wanted_;
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

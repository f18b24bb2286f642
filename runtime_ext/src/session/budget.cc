// The rung that a session uses, and changes of rungs.
#include <algorithm>
#include <mutex>

#include "base/error.h"
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

Places Session::PlacesOf(size_t rung) const noexcept {
  const uint64_t border = current().rungs[rung].working;
  return lane_ ? Places(lane_.base, memory_->base(), border, sharing_.pieces()) : Places(memory_->base(), memory_->base() + border, border);
}

uint64_t Session::OwnNbytes(size_t rung, const Sharing& sharing) const noexcept {
  return current().rungs[rung].arena - (lane_ ? current().rungs[rung].working : 0) - sharing.freed();
}

void Session::Use(size_t rung) noexcept {
  rung_ = wanted_ = states_rung_ = rung;
  abandoned_ = false;
  now().tapes.Open(current().plan(rung), file_->queued(), sharing_.omitted());
  processor_->Use(now().tapes.tapes());
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
  loader_->Open(now().tapes.tapes(), PlacesOf(rung_), current().rungs[rung_].working, memory_->fresh(OwnNbytes(rung_)), &now().preparer);
}

bool Session::MakeRoom(size_t rung) {
  const uint64_t nbytes = OwnNbytes(rung);
  if (memory_->Reserve(nbytes)) return true;
  if (running_) return false;
  loader_->Abort();  // reads for the next inference may be in flight
  if (!memory_->Resize(nbytes, CarriedAlong(rung))) memory_->RaiseRefusal(nbytes);
  Use(rung);
  return true;
}

void Session::SwitchToWanted() noexcept {
  if (wanted_ == rung_ && !abandoned_) return;
  loader_->Abort();  // reads for the next inference may be in flight
  if (!memory_->Resize(OwnNbytes(wanted_), CarriedAlong(wanted_))) {
    wanted_ = rung_;
    memory_->Resize(OwnNbytes(rung_), CarriedAlong(rung_));
  }
  Use(wanted_);
}

void Session::UseShape(size_t shape) {
  if (shape == shape_) return;
  loader_->Abort();  // reads for the next inference may be in flight
  const size_t rung = shapes_[shape]->wanted;
  const uint64_t nbytes = programs_[shape].rungs[rung].arena;
  Carried states;
  if (states_written_ && !current().states.empty())
    states = {StatesAt(shape_, states_rung_, sharing_), StatesAt(shape, rung, sharing_), CarriedTo(rung_).nbytes};
  if (!memory_->Resize(nbytes, states)) memory_->RaiseRefusal(nbytes);
  shape_ = shape;
  Use(rung);
}

void Session::Attach() {
  if (memory_->Attach()) Use(rung_);
}

bool Session::Abandon() noexcept {
  // A thread that copies read bytes would ask for the memory again.
  if (!file_->queued()) return false;
  loader_->Halt();  // before the memory goes: later reads would bring some back
  const Carried states = CarriedAlong(states_rung_);
  if (!memory_->Discard(states)) return false;
  rung_ = wanted_;
  abandoned_ = true;
  return true;
}

const RungHead& Session::SetBudget(uint64_t budget) {
  RequireThisProcess();
  if (lane_) Raise("InputError", "a session in a lane is parked: it has no budget");
  std::vector<size_t> of_shapes;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    of_shapes.push_back(ChooseRung(programs_[i], budget));
    shapes_[i]->checker.Check(of_shapes[i]);
  }
  std::unique_lock lock(state_mutex_);
  RequireOpen();
  processor_->RequireAlive();
  const size_t shape = shape_, chosen = of_shapes[shape];
  const bool has_room = MakeRoom(chosen);
  for (size_t i = 0; i < shapes_.size(); ++i) shapes_[i]->wanted = of_shapes[i];
  wanted_ = chosen;
  if (abandoned_ && has_room) rung_ = chosen;
  if (running_ && chosen < rung_) {
    interrupt_ = true;
    loader_->Interrupt();
  }
  // Until the memory is back, or another call wants something else.
  state_changed_.wait(lock, [&] { return !running_ || shape_ != shape || rung_ <= chosen || wanted_ != chosen; });
  if (!running_ && loader_ && !abandoned_ && (wanted_ == rung_ || !loader_->Busy() || !Abandon())) SwitchToWanted();
  return programs_[shape].rungs[chosen];
}

}  // namespace flexcomp

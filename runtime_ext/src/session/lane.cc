// Sessions that work in a lane: the owner says when a session runs, and on which rung.
#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "session/session.h"

namespace flexcomp {

void Session::RequireInLane(std::span<const size_t> rungs) const {
  if (!lane_) return;
  for (size_t i = 0; i < rungs.size(); ++i)
    if (const uint64_t working = programs_[i].rungs[rungs[i]].working; working > lane_.nbytes)
      RaiseError("InputError", "rung ", rungs[i], " works in ", working, " bytes, but the lane has ", lane_.nbytes);
}

void Session::Park(size_t number, std::vector<Sharing::Place> shared) {
  RequireThisProcess();
  if (!lane_) Raise("InputError", "a session without a lane has a budget: set that");
  if (number >= lane_ladder_.size()) RaiseError("InputError", "there are ", lane_ladder_.size(), " rungs, but no number ", number);
  const std::vector<size_t>& rungs = lane_ladder_[number].rungs;
  RequireInLane(rungs);
  for (size_t i = 0; i < rungs.size(); ++i) shapes_[i]->checker.Check(rungs[i]);
  const std::lock_guard lock(mutex_);
  const std::lock_guard state_lock(state_mutex_);
  RequireOpen();
  const size_t rung = rungs[shape_];
  Sharing sharing(current().plan(rung), current(), shareables_, std::move(shared));
  const uint64_t nbytes = NbytesFor(rungs, sharing);
  memory_->Reserve(nbytes);  // where there is room for both sizes
  if (!Change(shape_, rung, nbytes, &sharing)) memory_->RaiseRefusal(nbytes);
  std::ranges::copy(rungs, wanted_.begin());
  stopped_ = interrupt_ = false;
}

void Session::ReadAhead(bool reading) {
  const std::lock_guard lock(mutex_);
  RequireOpen();
  loader_->ReadAhead(reading);
}

void Session::LeaveLane() {
  const std::lock_guard lock(mutex_);
  RequireOpen();
  loader_->GiveUp();
}

void Session::Stop() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  stopped_ = interrupt_ = true;
  if (running_) loader_->Interrupt();
}

}  // namespace flexcomp

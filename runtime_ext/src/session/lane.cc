// Sessions that work in a lane: the owner says when a session runs, and on which rung.
#include <mutex>

#include "base/error.h"
#include "session/session.h"

namespace flexcomp {

void Session::RequireInLane(size_t rung) const {
  if (rung >= program_->rungs.size()) RaiseError("InputError", "there are ", program_->rungs.size(), " rungs, but no number ", rung);
  const uint64_t working = program_->rungs[rung].working;
  if (lane_ && working > lane_.nbytes)
    RaiseError("InputError", "rung ", rung, " works in ", working, " bytes, but the lane has ", lane_.nbytes);
}

void Session::RequireGoingOn() const {
  if (stopped_) Raise("Stopped", "the inference was stopped");
}

void Session::Park(size_t rung) {
  RequireThisProcess();
  if (!lane_) Raise("InputError", "a session without a lane has a budget: set that");
  RequireInLane(rung);
  checker_.Check(rung);
  const std::lock_guard lock(mutex_);
  const std::lock_guard state_lock(state_mutex_);
  RequireOpen();
  MakeRoom(rung);
  wanted_ = rung;
  abandoned_ = true;  // whatever the arena holds
  SwitchToWanted();
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
  loader_->GiveUpAhead();
}

void Session::Stop() {
  RequireThisProcess();
  const std::lock_guard lock(state_mutex_);
  RequireOpen();
  stopped_ = interrupt_ = true;
  if (running_) loader_->Interrupt();
}

}  // namespace flexcomp

// Sessions that work in a lane: the owner says when a session runs, and on which rung.
#include <mutex>
#include <utility>

#include "base/error.h"
#include "session/session.h"

namespace flexcomp {

void Session::RequireInLane(size_t rung) const {
  if (rung >= current().rungs.size()) RaiseError("InputError", "there are ", current().rungs.size(), " rungs, but no number ", rung);
  const uint64_t working = current().rungs[rung].working;
  if (lane_ && working > lane_.nbytes)
    RaiseError("InputError", "rung ", rung, " works in ", working, " bytes, but the lane has ", lane_.nbytes);
}

void Session::Park(size_t rung, std::vector<Sharing::Place> shared) {
  RequireThisProcess();
  if (!lane_) Raise("InputError", "a session without a lane has a budget: set that");
  RequireInLane(rung);
  now().checker.Check(rung);
  Sharing sharing(current().plan(rung), current(), shareables_, std::move(shared));
  const std::lock_guard lock(mutex_);
  const std::lock_guard state_lock(state_mutex_);
  RequireOpen();
  const uint64_t nbytes = OwnNbytes(rung, sharing);
  memory_->Reserve(nbytes);  // where there is room for both sizes
  loader_->Abort();  // reads for the next inference may be in flight
  if (!memory_->Resize(nbytes, states_written_ ? CarriedTo(rung, sharing, nbytes) : Carried{})) memory_->RaiseRefusal(nbytes);
  nbytes_ = nbytes;
  std::swap(sharing_, sharing);
  Use(rung);
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

// The use of a session's arena by one call.
#pragma once

#include <mutex>

#include "session/session.h"

namespace flexcomp {

class Session::ArenaUse {
 public:
  explicit ArenaUse(Session& session) : ArenaUse(session, session.shape_) {}
  // By an inference in this shape.
  ArenaUse(Session& session, size_t shape) : session_(session) {
    const std::lock_guard lock(session_.state_mutex_);
    session_.RequireOpen();
    session_.cancelled_ = false;
    session_.RequireGoingOn();
    session_.processor_->RequireAlive();
    session_.UseShape(shape);
    session_.SwitchToWanted();
    session_.Attach();
    session_.running_ = true;
    session_.interrupt_ = false;
  }
  ~ArenaUse() {
    const std::lock_guard lock(session_.state_mutex_);
    session_.running_ = false;
    session_.SwitchToWanted();
    if (session_.interrupt_) session_.loader_->GiveUp();  // came at the end: what is loaded ahead is interrupted
    session_.state_changed_.notify_all();
  }
  ArenaUse(const ArenaUse&) = delete;
  ArenaUse& operator=(const ArenaUse&) = delete;

  // In the middle of an inference that was interrupted.
  void Switch() {
    const std::lock_guard lock(session_.state_mutex_);
    session_.RequireGoingOn();
    session_.interrupt_ = false;
    ++session_.stats_.restarts;
    session_.SwitchToWanted();
    session_.state_changed_.notify_all();
    session_.Attach();
  }

 private:
  Session& session_;
};

}  // namespace flexcomp

// The turn of one call that uses a session's arena.
#pragma once

#include <mutex>
#include <optional>

#include "session/session.h"

namespace flexcomp {

class Session::ArenaUse {
 public:
  // By an inference in this shape; nothing: in the one in use.
  explicit ArenaUse(Session& session, std::optional<size_t> shape = std::nullopt) : ArenaUse(session, Begun()) {
    std::unique_lock lock = Continue();
    session_.Attach();
    if (!shape || *shape == session_.shape_) return;
    if (session_.loader_->Settles()) {  // weights that the first inference left to be prepared: they can stay then
      lock.unlock();
      session_.TryWarm();
      lock = Continue();
    }
    session_.UseShape(*shape);
    session_.Attach();
  }
  ~ArenaUse() {
    const std::lock_guard lock(session_.state_mutex_);
    session_.running_ = false;
    session_.SwitchToWanted();
    if (session_.interrupt_) session_.loader_->GiveUpLater();  // came at the end: what is loaded ahead is interrupted
    session_.state_changed_.notify_all();
  }
  ArenaUse(const ArenaUse&) = delete;
  ArenaUse& operator=(const ArenaUse&) = delete;

  // In the middle of an inference that was interrupted.
  void Switch() {
    const std::unique_lock lock = Continue();
    session_.Attach();
    ++session_.stats_.restarts;
  }

 private:
  struct Begun {};

  // The call is in progress from now on: whoever cancels it ends it.
  ArenaUse(Session& session, Begun) : session_(InThisProcess(session)), turn_(session.mutex_) {
    const std::lock_guard lock(session_.state_mutex_);
    session_.RequireOpen();
    session_.cancelled_ = false;
    session_.RequireGoingOn();
    session_.processor_->RequireAlive();
    session_.SwitchToWanted();  // first: memory that went must not be loaded into
    session_.running_ = true;
    GoOn();
  }

  // Returns the lock, when nothing that was given up is in flight.
  std::unique_lock<std::mutex> Continue() {
    std::unique_lock lock(session_.state_mutex_);
    session_.RequireGoingOn();
    lock.unlock();
    session_.loader_->EndGivingUp();  // without the lock: Cancel must not wait for a slow read
    lock.lock();
    session_.RequireGoingOn();
    GoOn();
    session_.loader_->EndGivingUp();
    session_.SwitchToWanted();
    session_.state_changed_.notify_all();
    return lock;
  }
  void GoOn() noexcept {
    session_.interrupt_ = false;
    session_.loader_->GoOn();
  }

  static Session& InThisProcess(Session& session) {
    session.RequireThisProcess();
    return session;
  }

  Session& session_;
  const std::lock_guard<std::mutex> turn_;
};

// While it lives, the loader does other tapes than the plan's, from which it goes on afterwards.
class Session::OtherTapes {
 public:
  explicit OtherTapes(Session& session) : session_(session) { session.loader_->GiveUp(); }  // reads for the next inference
  ~OtherTapes() {
    session_.loader_->GiveUp();
    session_.file_->Verify(true);
    session_.OpenTapes();
  }
  OtherTapes(const OtherTapes&) = delete;
  OtherTapes& operator=(const OtherTapes&) = delete;

 private:
  Session& session_;
};

}  // namespace flexcomp

// The mutex that a process finds unlocked when it was forked, and all that the mutex guards whole: forking waits for the thread
// that holds it.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <mutex>
#include <new>

namespace flexcomp {

// One for everything that a process and its children read and that changes when it is first used. Held for moments; whoever
// holds it takes no other mutex and does not fork.
class ForkMutex {
 public:
  static std::mutex& Get() noexcept { return instance_->mutex_; }

 private:
  ForkMutex() noexcept {
    ::pthread_atfork([] { Get().lock(); }, [] { Get().unlock(); }, [] { Get().unlock(); });
  }

  std::mutex mutex_;

  // There before any thread, so that none is forked away while it makes it. Never destroyed: models that live until the process
  // ends use it after everything else.
  static std::byte place_[];
  static ForkMutex* const instance_;
};

alignas(ForkMutex) inline std::byte ForkMutex::place_[sizeof(ForkMutex)];
inline ForkMutex* const ForkMutex::instance_ = new (place_) ForkMutex;

}  // namespace flexcomp

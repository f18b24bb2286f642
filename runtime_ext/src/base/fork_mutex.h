// The mutex that a forked process finds unlocked, with all data that the mutex guards whole: forking waits for the
// thread that holds the mutex.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <mutex>
#include <new>

namespace flexcomp {

// One for everything that a process and its children read and that changes at first use. Held for moments; a holder
// takes no other mutex and does not fork.
class ForkMutex {
 public:
  static std::mutex& Get() noexcept { return instance_->mutex_; }

 private:
  ForkMutex() noexcept {
    ::pthread_atfork([] { Get().lock(); }, [] { Get().unlock(); }, [] { Get().unlock(); });
  }

  std::mutex mutex_;

  // Made before any thread, so that none is forked away while making it. Never destroyed: models that live until the
  // process ends use the mutex after everything else.
  static std::byte place_[];
  static ForkMutex* const instance_;
};

alignas(ForkMutex) inline std::byte ForkMutex::place_[sizeof(ForkMutex)];
inline ForkMutex* const ForkMutex::instance_ = new (place_) ForkMutex;

}  // namespace flexcomp

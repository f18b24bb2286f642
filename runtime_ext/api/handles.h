// What callers hold: numbers in the shape of pointers, which are never used again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "api/status.h"
#include "base/error.h"
#include "base/fork_mutex.h"

namespace flexcomp::api {

// One count for all kinds: the handle of one kind is no handle of another.
inline uintptr_t last_handle = 0;  // while the mutex is held

// All open things of a kind. A forked process finds them whole. Never destroyed: things that nobody closed end with the process.
template <typename Handle, typename Thing>
class Handles {
 public:
  explicit Handles(const char* closed) noexcept : closed_(closed) {}

  // Throws std::bad_alloc.
  Handle* Keep(std::shared_ptr<Thing> thing) {
    const std::lock_guard lock(ForkMutex::Get());
    all_.push_back({last_handle + 1, std::move(thing)});
    return reinterpret_cast<Handle*>(++last_handle);
  }

  // Lives at least as long as the result. Throws an error of kind Closed.
  std::shared_ptr<Thing> Find(Handle* handle) {
    const std::lock_guard lock(ForkMutex::Get());
    const auto found = Search(handle);
    if (found == all_.end()) Raise(kClosed, closed_);
    return found->thing;
  }

  // From now on the handle is nobody's. Throws as Find.
  std::shared_ptr<Thing> Forget(Handle* handle) {
    std::shared_ptr<Thing> thing = Drop(handle);
    if (thing == nullptr) Raise(kClosed, closed_);
    return thing;
  }

  // The same; nullptr: there is none.
  std::shared_ptr<Thing> Drop(Handle* handle) noexcept {
    const std::lock_guard lock(ForkMutex::Get());
    const auto found = Search(handle);
    if (found == all_.end()) return nullptr;
    std::shared_ptr<Thing> thing = std::move(found->thing);
    all_.erase(found);
    return thing;
  }

  // The same for all things for which `gone`, which does not throw, is true.
  template <typename Gone>
  void ForgetAll(const Gone& gone) noexcept {
    const std::lock_guard lock(ForkMutex::Get());
    std::erase_if(all_, [&](const Entry& entry) { return gone(*entry.thing); });
  }

 private:
  struct Entry {
    uintptr_t number;
    std::shared_ptr<Thing> thing;
  };

  auto Search(Handle* handle) noexcept { return std::ranges::find(all_, reinterpret_cast<uintptr_t>(handle), &Entry::number); }

  const char* const closed_;
  std::vector<Entry> all_;
};

// A handle that is given up at the end, unless it is released before.
template <typename Handle>
class Kept {
 public:
  Kept(Handle* handle, bool (*give_up)(Handle*) noexcept) noexcept : handle_(handle), give_up_(give_up) {}
  ~Kept() {
    if (handle_ != nullptr) give_up_(handle_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  Handle* Release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  Handle* handle_;
  bool (*const give_up_)(Handle*) noexcept;
};

}  // namespace flexcomp::api

#include "api/sessions.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "api/status.h"
#include "base/error.h"
#include "base/fork_mutex.h"

namespace flexcomp::api {
namespace {

struct Kept {
  uintptr_t number;
  std::shared_ptr<Session> session;
};

// A forked process finds it whole. Never destroyed: sessions that nobody closed end with the process.
std::vector<Kept>& All() {
  static auto* const all = new std::vector<Kept>;
  return *all;
}

thread_local InCallback* innermost = nullptr;

// While the mutex is held.
std::vector<Kept>::iterator Search(flexcomp_session* handle) {
  const auto found = std::ranges::find(All(), reinterpret_cast<uintptr_t>(handle), &Kept::number);
  if (found == All().end()) Raise(kClosed, "the session is closed, or was never open");
  return found;
}

std::shared_ptr<Session> FindAnywhere(flexcomp_session* handle) {
  const std::lock_guard lock(ForkMutex::Get());
  return Search(handle)->session;
}

void RequireOutside(const Session& session) {
  if (InCallback::Of(session, false) != nullptr)
    Raise("InputError", "this call waits for the inference in progress, from a callback of which it is made");
}

}  // namespace

flexcomp_session* Keep(Session::Owner owner) {
  static uintptr_t last = 0;
  std::shared_ptr<Session> session(std::move(owner));
  const std::lock_guard lock(ForkMutex::Get());
  All().push_back({last + 1, std::move(session)});
  return reinterpret_cast<flexcomp_session*>(++last);
}

std::shared_ptr<Session> Find(flexcomp_session* handle) {
  std::shared_ptr<Session> session = FindAnywhere(handle);
  if (InCallback::Of(*session, true) != nullptr) Raise("InputError", "this call is made from the reader of its session's weights");
  return session;
}

std::shared_ptr<Session> FindToWait(flexcomp_session* handle) {
  std::shared_ptr<Session> session = FindAnywhere(handle);
  RequireOutside(*session);
  return session;
}

void Cancel(flexcomp_session* handle) {
  const std::shared_ptr<Session> session = FindAnywhere(handle);
  if (InCallback* const reader = InCallback::Of(*session, true)) reader->Cancel();
  else session->Cancel();
}

std::shared_ptr<Session> Forget(flexcomp_session* handle) {
  const std::lock_guard lock(ForkMutex::Get());
  const auto found = Search(handle);
  RequireOutside(*found->session);
  std::shared_ptr<Session> session = std::move(found->session);
  All().erase(found);
  return session;
}

InCallback::InCallback(const Session* session, Kind kind) noexcept
    : outer_(std::exchange(innermost, this)), session_(session), kind_(kind) {}
InCallback::~InCallback() { innermost = outer_; }

InCallback* InCallback::Of(const Session& session, bool readers_only) noexcept {
  InCallback* scope = innermost;
  while (scope != nullptr && (scope->session_ != &session || (readers_only && scope->kind_ != kReader))) scope = scope->outer_;
  return scope;
}

}  // namespace flexcomp::api

#include "api/sessions.h"

#include <mutex>
#include <utility>

#include "api/handles.h"
#include "api/members.h"
#include "api/status.h"
#include "base/error.h"
#include "base/fork_mutex.h"

namespace flexcomp::api {
namespace {

Handles<flexcomp_session, const Opened>& All() {
  static auto* const all = new Handles<flexcomp_session, const Opened>("the session is closed, or was never open");
  return *all;
}

// Those of all threads, the innermost of a thread first, while the mutex is held. Not thread_local: in a library that is opened at run
// time the first use of such a variable allocates, and where there is no memory that ends the process.
InCallback* newest = nullptr;

InCallback* CallbackOf(const Opened& opened, bool readers_only) noexcept {
  return opened.session == nullptr ? nullptr : InCallback::Of(*opened.session, readers_only);
}

}  // namespace

const Shapes& Opened::shapes() const noexcept { return session != nullptr ? session->shapes() : member->shapes(); }

const Program& Opened::program(uint32_t shape) const {
  if (shape >= shape_count()) RaiseError("InputError", "there is no shape ", shape, ": the network has ", shape_count());
  return shapes()[shape];
}

flexcomp_session* Keep(Session::Owner owner) { return All().Keep(std::make_shared<const Opened>(Opened{std::move(owner)})); }
flexcomp_session* Keep(std::shared_ptr<Member> member) { return All().Keep(std::make_shared<const Opened>(Opened{nullptr, std::move(member)})); }

std::shared_ptr<const Opened> FindOpened(flexcomp_session* handle) {
  std::shared_ptr<const Opened> opened = All().Find(handle);
  if (CallbackOf(*opened, true) != nullptr) Raise("InputError", "this call is made from the reader of its session's weights");
  return opened;
}

std::shared_ptr<const Opened> FindOpenedToWait(flexcomp_session* handle) {
  std::shared_ptr<const Opened> opened = All().Find(handle);
  if (CallbackOf(*opened, false) != nullptr)
    Raise("InputError", "this call waits for the inference in progress, from a callback of which it is made");
  return opened;
}

std::shared_ptr<Session> FindToWait(flexcomp_session* handle) {
  const std::shared_ptr<const Opened> opened = FindOpenedToWait(handle);
  if (opened->session == nullptr) Raise(kUnsupported, "the session is a member of a pool, which decides this itself");
  return opened->session;
}

void Cancel(flexcomp_session* handle) {
  const std::shared_ptr<const Opened> opened = All().Find(handle);
  if (InCallback* const reader = CallbackOf(*opened, true))
    reader->Cancel();
  else if (opened->member != nullptr)
    opened->member->Cancel();
  else
    opened->session->Cancel();
}

bool Forget(flexcomp_session* handle) noexcept { return All().Drop(handle) != nullptr; }

void ForgetMembers(const void* pool) noexcept {
  All().ForgetAll([pool](const Opened& opened) noexcept { return opened.member != nullptr && &opened.member->pool() == pool; });
}

InCallback::InCallback(const Session* session, Kind kind) noexcept
    : thread_(::pthread_self()), session_(session), kind_(kind) {
  const std::lock_guard lock(ForkMutex::Get());
  older_ = std::exchange(newest, this);
  if (older_ != nullptr) older_->newer_ = this;
}

InCallback::~InCallback() {
  const std::lock_guard lock(ForkMutex::Get());
  (newer_ != nullptr ? newer_->older_ : newest) = older_;
  if (older_ != nullptr) older_->newer_ = newer_;
}

InCallback* InCallback::Of(const Session& session, bool readers_only) noexcept {
  const std::lock_guard lock(ForkMutex::Get());
  const auto is_meant = [&](const InCallback& one) {
    return one.session_ == &session && (one.kind_ == kReader || !readers_only) && ::pthread_equal(one.thread_, ::pthread_self()) != 0;
  };
  InCallback* one = newest;
  while (one != nullptr && !is_meant(*one)) one = one->older_;
  return one;
}

}  // namespace flexcomp::api

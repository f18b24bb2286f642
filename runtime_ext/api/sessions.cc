#include "api/sessions.h"

#include <utility>

#include "api/handles.h"
#include "api/members.h"
#include "api/status.h"
#include "base/error.h"

namespace flexcomp::api {
namespace {

Handles<flexcomp_session, const Opened>& All() {
  static auto* const all = new Handles<flexcomp_session, const Opened>("the session is closed, or was never open");
  return *all;
}

thread_local InCallback* innermost = nullptr;

InCallback* CallbackOf(const Opened& opened, bool readers_only) noexcept {
  return opened.session == nullptr ? nullptr : InCallback::Of(*opened.session, readers_only);
}

}  // namespace

const Program& Opened::program() const noexcept { return session != nullptr ? session->program() : member->program(); }

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
    : outer_(std::exchange(innermost, this)), session_(session), kind_(kind) {}
InCallback::~InCallback() { innermost = outer_; }

InCallback* InCallback::Of(const Session& session, bool readers_only) noexcept {
  InCallback* scope = innermost;
  while (scope != nullptr && (scope->session_ != &session || (readers_only && scope->kind_ != kReader))) scope = scope->outer_;
  return scope;
}

}  // namespace flexcomp::api

#include "api/sessions.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "api/handles.h"
#include "api/members.h"
#include "api/status.h"
#include "base/error.h"
#include "base/fork_mutex.h"

namespace flexcomp::api {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

Handles<flexcomp_session, const Opened>& All() {
  static auto* const all = new Handles<flexcomp_session, const Opened>("the session is closed, or was never open");
  return *all;
}

// Those of all threads, the innermost of a thread first, while the mutex is held. Not thread_local: in a library that is opened at run
// time the first use of such a variable allocates, and where there is no memory that ends the process.
InCallback* newest = nullptr;

// From the record of the shape that needs the most (flexcomp/runtime/budget.py). What cannot be read stays empty.
void NoteMinimum(Opened& opened) {
  const auto least = [](const auto& program) { return program->rungs.front().budget; };
  const Program& program = **std::ranges::max_element(opened.shapes().programs(), {}, least);
  const auto found = program.metadata.find("minimum");
  if (found == program.metadata.end()) return;
  ffi::String error;
  const auto record = json::Parse(found->second, &error).try_cast<json::Object>();
  if (!error.empty() || !record) return;
  const auto member = [&]<typename T>(const char* name, T) {
    const auto value = record->Get(ffi::String(name));
    return value.has_value() ? value->try_cast<T>() : std::nullopt;
  };
  const auto layer = member("layer", ffi::String());
  const auto needs = member("needs", json::Object());
  if (!layer || !needs) return;
  opened.layer = *layer;
  for (const auto& [name, value] : *needs) {
    const auto what = name.try_cast<ffi::String>();
    const auto nbytes = value.try_cast<int64_t>();
    if (what && nbytes && *nbytes > 0) opened.needs += (opened.needs.empty() ? "" : ", ") + std::to_string(*nbytes) + " of " + std::string(*what);
  }
}

InCallback* CallbackOf(const Opened& opened, bool readers_only) noexcept {
  return opened.session == nullptr ? nullptr : InCallback::Of(*opened.session, readers_only);
}

}  // namespace

Session& Opened::own() const {
  if (session == nullptr) Raise(kUnsupported, "the session is a member of a pool, which decides this itself");
  return *session;
}

const Shapes& Opened::shapes() const noexcept { return session != nullptr ? session->shapes() : member->shapes(); }

const Program& Opened::program(uint32_t shape) const {
  if (shape >= shape_count()) RaiseError("InputError", "there is no shape ", shape, ": the network has ", shape_count());
  return shapes()[shape];
}

flexcomp_session* Keep(Session::Owner owner) {
  const auto opened = std::make_shared<Opened>(Opened{std::move(owner)});
  const Placement placement = opened->session->state().placement;
  opened->compute_cpus = placement.compute.ToString();
  opened->loader_cpus = placement.loader.ToString();
  NoteMinimum(*opened);
  return All().Keep(opened);
}

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
  opened->own();
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

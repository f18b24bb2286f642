// Open sessions by their handles.
#pragma once

#include <flexcomp.h>
#include <pthread.h>

#include <memory>
#include <string>

#include "session/session.h"

namespace flexcomp::api {

class Member;

// The network of a handle: a session of its own, or a member of a pool.
struct Opened {
  std::shared_ptr<Session> session;  // nullptr: a member
  std::shared_ptr<Member> member{};
  std::string layer{}, needs{}, compute_cpus{}, loader_cpus{};  // of a session of its own, as flexcomp_session_info has them

  Session& own() const;  // throws an error of kind Unsupported for a member of a pool
  const Shapes& shapes() const noexcept;
  const Program& program() const noexcept { return shapes()[0]; }  // names, types and states are those of all
  size_t shape_count() const noexcept { return shapes().size(); }
  const Program& program(uint32_t shape) const;  // throws InputError for a shape that there is not
};

// Keeps it, and returns its handle, which is nobody else's in the life of the process. Throws std::bad_alloc.
flexcomp_session* Keep(Session::Owner session);
flexcomp_session* Keep(std::shared_ptr<Member> member);

// The network of a handle, which lives at least as long as the result. Throws an error of kind Closed, and InputError while a reader of
// its weights runs in this thread: another thread may wait for the reader, and hold what the call needs.
std::shared_ptr<const Opened> FindOpened(flexcomp_session* handle);

// The same, for calls that wait for the inference in progress. Throws InputError in any callback of this session, which would wait
// for itself.
std::shared_ptr<const Opened> FindOpenedToWait(flexcomp_session* handle);

// The same, of a session of its own. Throws an error of kind Unsupported for a member of a pool.
std::shared_ptr<Session> FindToWait(flexcomp_session* handle);

// From now on the handle is nobody's; whether it was somebody's.
bool Forget(flexcomp_session* handle) noexcept;

// From now on no handle is a member of the pool.
void ForgetMembers(const void* pool) noexcept;

// Cancels the inference of a handle's session, or member; in a reader of its weights, the read. Throws an error of kind Closed.
void Cancel(flexcomp_session* handle);

// While it lives, the calling thread is in a callback of the session; nullptr: of a session that nobody has a handle of yet.
class InCallback {
 public:
  enum Kind {
    kPorts,
    kReader
  };

  InCallback(const Session* session, Kind kind) noexcept;
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;

  // The innermost reader of this session's weights that runs in this thread, or callback of any kind; nullptr: none does.
  static InCallback* Of(const Session& session, bool readers_only) noexcept;
  void Cancel() noexcept { cancelled_ = true; }
  bool cancelled() const noexcept { return cancelled_; }

 private:
  InCallback *older_ = nullptr, *newer_ = nullptr;  // of any thread
  const pthread_t thread_;
  const Session* const session_;
  const Kind kind_;
  bool cancelled_ = false;
};

}  // namespace flexcomp::api

// Open sessions by their handles.
#pragma once

#include <flexcomp.h>

#include <cstdint>
#include <memory>

#include "session/session.h"

namespace flexcomp::api {

// Keeps a session, and returns its handle, which is nobody else's in the life of the process. Throws std::bad_alloc.
flexcomp_session* Keep(Session::Owner session);

// The session of a handle, which lives at least as long as the result. Throws an error of kind Closed.
std::shared_ptr<Session> Find(flexcomp_session* handle);

// The same, for calls that wait for the inference in progress. Throws InputError in a callback of this session, which would wait for
// itself.
std::shared_ptr<Session> FindToWait(flexcomp_session* handle);

// From now on the handle is nobody's. Throws as FindToWait.
std::shared_ptr<Session> Forget(flexcomp_session* handle);

// While it lives, the calling thread is in a callback of the session.
class InCallback {
 public:
  explicit InCallback(const Session& session) noexcept;
  ~InCallback();
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;

 private:
  const Session* const outer_;
};

}  // namespace flexcomp::api

// flexcomp.h with exceptions.
#pragma once

#include <flexcomp.h>

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace flexcomp::runner {

// A call failed.
struct CallError : std::runtime_error {
  explicit CallError(flexcomp_status of) : std::runtime_error(flexcomp_message()), status(of) {}
  const flexcomp_status status;
};

inline void Require(flexcomp_status status) {
  if (status != FLEXCOMP_OK) throw CallError(status);
}

// What a call writes to a structure.
template <typename Made, typename Call, typename... Args>
Made Got(const Call& call, Args... args) {
  Made made{};
  made.size = sizeof made;
  Require(call(args..., &made));
  return made;
}

// The text that a call gives.
template <typename Call, typename Handle>
std::string Text(const Call& call, Handle* handle, flexcomp_text which) {
  std::string text;
  Require(call(handle, which, [](void* context, const char* given) { *static_cast<std::string*>(context) = given; }, &text));
  return text;
}

using OnPlaces = std::function<void(std::span<const flexcomp_tensor>)>;

// flexcomp_run_in_place with functions that may throw; `drain` may be empty.
inline void RunInPlace(flexcomp_session* session, const OnPlaces& fill, const OnPlaces& drain) {
  struct Context {
    const OnPlaces &fill, &drain;
    std::exception_ptr error{};
    flexcomp_status Call(const OnPlaces& function, const flexcomp_tensor* tensors, uint32_t count) noexcept try {
      function({tensors, count});
      return FLEXCOMP_OK;
    } catch (...) {
      error = std::current_exception();
      return FLEXCOMP_ERROR_EXECUTION;
    }
    static flexcomp_status Fill(void* of, const flexcomp_tensor* tensors, uint32_t count) {
      return static_cast<Context*>(of)->Call(static_cast<Context*>(of)->fill, tensors, count);
    }
    static flexcomp_status Drain(void* of, const flexcomp_tensor* tensors, uint32_t count) {
      return static_cast<Context*>(of)->Call(static_cast<Context*>(of)->drain, tensors, count);
    }
  } context{fill, drain};
  const flexcomp_status status = flexcomp_run_in_place(session, Context::Fill, drain ? Context::Drain : nullptr, &context);
  if (context.error) std::rethrow_exception(context.error);
  Require(status);
}

struct Close {
  void operator()(flexcomp_session* session) const noexcept { flexcomp_close(session); }
  void operator()(flexcomp_pool* pool) const noexcept { flexcomp_pool_close(pool); }
};
using SessionHandle = std::unique_ptr<flexcomp_session, Close>;
using PoolHandle = std::unique_ptr<flexcomp_pool, Close>;

}  // namespace flexcomp::runner

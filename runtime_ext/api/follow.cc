// Budgets that follow the system's memory, each in a thread of its own.
#include <flexcomp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/budgets.h"
#include "api/handles.h"
#include "api/pools.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "base/error.h"
#include "base/process_mark.h"
#include "watch/hysteresis.h"
#include "watch/memory_source.h"

namespace flexcomp::api {
namespace {

namespace json = tvm::ffi::json;

constexpr double kInterval = 0.2, kPatience = 2;  // seconds, unless a caller says otherwise
constexpr double kMostSeconds = 1e6;
constexpr double kPoolStep = 1.25;  // between the budgets of a pool that are tried

// A session's or a pool's budgets. All throw Closed.
struct Target {
  std::function<std::vector<uint64_t>()> budgets;  // ascending; none: a pool without members
  std::function<uint64_t()> used, resident;
  std::function<void(uint64_t)> set;
};

Target TargetOf(flexcomp_session* handle) {
  const auto found = [handle] { return FindToWait(handle); };
  return {[found] {
            const std::shared_ptr<Session> session = found();
            std::vector<uint64_t> budgets;
            const uint64_t smallest = BudgetOf(FLEXCOMP_BUDGET_SMALLEST, session->shapes());  // for every shape
            budgets.push_back(smallest);
            for (const RungHead& rung : session->program().rungs)
              if (rung.budget > smallest) budgets.push_back(rung.budget);
            return budgets;
          },
          [found] {
            const std::shared_ptr<Session> session = found();
            const Session::State state = session->state();
            return session->shapes()[state.shape].rungs[state.rung].budget;
          },
          [found] { return found()->ResidentArena(); }, [found](uint64_t budget) { found()->SetBudget(budget); }};
}

uint64_t NumberOf(const json::Object& said, const char* name) { return static_cast<uint64_t>(said[tvm::ffi::String(name)].cast<int64_t>()); }

Target TargetOf(flexcomp_pool* handle) {
  const auto found = [handle] { return FindPool(handle); };
  return {[found] {
            const json::Object plan = found()->Plan();
            std::vector<uint64_t> budgets;
            if (plan["models"].cast<json::Array>().empty()) return budgets;
            const uint64_t least = std::max<uint64_t>(NumberOf(plan, "least_bytes"), 1), most = std::max(least, NumberOf(plan, "most_bytes"));
            for (double step = static_cast<double>(least); step < static_cast<double>(most); step *= kPoolStep)
              budgets.push_back(static_cast<uint64_t>(std::ceil(step)));
            budgets.push_back(most);
            return budgets;
          },
          [found] { return NumberOf(found()->Plan(), "budget_bytes"); }, [found] { return NumberOf(found()->Stats(false), "resident_bytes"); },
          [found](uint64_t budget) { found()->SetBudget(budget); }};
}

std::unique_ptr<MemorySource> SourceOf(const flexcomp_follow_options& given) {
  switch (given.kind) {
    case FLEXCOMP_CONTROL_GROUP:
      return std::make_unique<ControlGroup>(given.path == nullptr ? ControlGroup::Own() : ControlGroup(given.path));
    case FLEXCOMP_PRESSURE:
      return given.path == nullptr ? std::make_unique<Pressure>() : std::make_unique<Pressure>(given.path);
    default:
      RaiseError("InputError", "there is nothing of the kind ", given.kind, " to follow");
  }
}

double SecondsOf(double given, double usual, const char* name) {
  if (!std::isfinite(given) || given < 0 || given > kMostSeconds)
    RaiseError("InputError", "the member \"", name, "\" is ", given, ": it must be a number of seconds from 0 to ", kMostSeconds);
  return given > 0 ? given : usual;
}

class Follower {
 public:
  // A forked process, which has no such thread, leaves its copy alone.
  struct Deleter {
    void operator()(Follower* follower) const noexcept {
      if (follower->process_.IsThisProcess()) delete follower;
    }
  };

  Follower(Target target, const flexcomp_follow_options& given)
      : target_(std::move(target)),
        source_(SourceOf(given)),
        interval_(SecondsOf(given.interval_s, kInterval, "interval_s")),
        hysteresis_(SecondsOf(given.patience_s, kPatience, "patience_s")),
        most_(given.most > 0 ? given.most : UINT64_MAX),
        changed_(given.changed),
        context_(given.context) {
    target_.used();  // throws for what cannot be followed
    thread_ = std::thread([this] { Main(); });
  }
  ~Follower() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  bool IsThisThread() const noexcept { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  void Main() noexcept {
    flexcomp_status told = FLEXCOMP_OK;
    for (std::unique_lock lock(mutex_); !stopped_; wake_.wait_for(lock, interval_, [this] { return stopped_; })) {
      lock.unlock();
      const flexcomp_status status = Guarded([this] { Look(); });
      if (status != FLEXCOMP_OK && status != told) Tell(status);
      told = status;
      if (status == FLEXCOMP_ERROR_CLOSED) return;
      lock.lock();
    }
  }

  void Look() {
    std::vector<uint64_t> budgets = target_.budgets();
    if (budgets.empty()) return;
    while (budgets.size() > 1 && budgets.back() > most_) budgets.pop_back();
    // Read first: pages touched meanwhile then count as somebody else's, not as free.
    const Budgeted now{budgets, used_ = target_.used(), target_.resident()};
    const std::optional<uint64_t> allowed = source_->Allowed(now);
    if (!allowed) return;
    const double now_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (const uint64_t chosen = hysteresis_.Next(now, *allowed, now_s); chosen != now.used) {
      try {
        target_.set(chosen);
      } catch (...) {
        hysteresis_.StartAgain();  // not at once: trying may cost what is in memory
        throw;
      }
      used_ = target_.used();
      Tell(FLEXCOMP_OK);
    }
    if (*allowed < budgets.front())
      RaiseError("BudgetError", *allowed, " bytes are allowed, and the smallest budget is ", budgets.front(), ": it is used all the same");
  }

  void Tell(flexcomp_status status) const {
    if (changed_ != nullptr) changed_(context_, status, used_);
  }

  const Target target_;
  const std::unique_ptr<MemorySource> source_;
  const std::chrono::duration<double> interval_;
  Hysteresis hysteresis_;
  const uint64_t most_;
  const flexcomp_follow_callback changed_;
  void* const context_;
  uint64_t used_ = 0;
  ProcessMark process_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

Handles<flexcomp_follower, Follower>& Followers() {
  static auto* const all = new Handles<flexcomp_follower, Follower>("nothing is followed any more");
  return *all;
}

template <typename Handle>
flexcomp_status Follow(Handle* handle, const flexcomp_follow_options* given, flexcomp_follower** follower) noexcept {
  if (follower != nullptr) *follower = nullptr;
  return Guarded([&] {
    RequirePointer(follower, "follower");
    const flexcomp_follow_options options = given == nullptr ? flexcomp_follow_options FLEXCOMP_FOLLOW_OPTIONS_INIT : Taken(given, sizeof *given, "options");
    if (options.reserved != 0) RaiseError("InputError", "the member \"reserved\" is ", options.reserved, ", not 0");
    *follower = Followers().Keep(std::shared_ptr<Follower>(std::unique_ptr<Follower, Follower::Deleter>(new Follower(TargetOf(handle), options))));
  });
}

}  // namespace
}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_follow(flexcomp_session* session, const flexcomp_follow_options* options, flexcomp_follower** follower) {
  return api::Follow(session, options, follower);
}

flexcomp_status flexcomp_pool_follow(flexcomp_pool* pool, const flexcomp_follow_options* options, flexcomp_follower** follower) {
  return api::Follow(pool, options, follower);
}

flexcomp_status flexcomp_unfollow(flexcomp_follower* follower) {
  return api::Guarded([&] {
    if (follower == nullptr) return;
    if (api::Followers().Find(follower)->IsThisThread()) Raise("InputError", "the follower's own callback cannot end it");
    api::Followers().Forget(follower);
  });
}

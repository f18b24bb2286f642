// Pools, and their members' requests.
#include <flexcomp.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "api/members.h"
#include "api/opening.h"
#include "api/pools.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "base/error.h"
#include "library/load.h"
#include "pool/pool.h"

namespace flexcomp::api {
namespace {

namespace json = tvm::ffi::json;

struct Requested {
  const std::shared_ptr<Pool> pool;
  const uint64_t ticket;
  std::atomic<bool> waited = false;
};

Handles<flexcomp_pool, Pool>& Pools() {
  static auto* const all = new Handles<flexcomp_pool, Pool>("the pool is closed, or was never open");
  return *all;
}

Handles<flexcomp_request, Requested>& Requesteds() {
  static auto* const all = new Handles<flexcomp_request, Requested>("the request is over, or never was");
  return *all;
}

// The request is done, or was never made.
bool Over(flexcomp_request* handle) noexcept {
  const std::shared_ptr<Requested> request = Requesteds().Drop(handle);
  if (request != nullptr) request->pool->Forget(request->ticket);
  return request != nullptr;
}

void RequireNonNegative(double number, const char* name) {
  if (!std::isfinite(number) || number < 0) RaiseError("InputError", "the member \"", name, "\" is ", number, ": it must be 0 or a positive number");
}

PoolOptions OptionsOf(const flexcomp_pool_options& given) {
  if (given.flags != 0) RaiseError("InputError", "there are no flags ", given.flags, " of pools");
  if (given.threads < 0) RaiseError("InputError", "cannot run on ", given.threads, " threads");
  PoolOptions made;
  made.budget = given.budget;
  made.threads = given.threads;
  if (given.lanes > 0) made.lanes = given.lanes;
  if (given.queue > 0) made.most_waiting = given.queue;
  return made;
}

ModelOptions OptionsOf(const flexcomp_member_options& given) {
  RequireNonNegative(given.urgency, "urgency");
  RequireNonNegative(given.rate, "rate");
  RequireNonNegative(given.deadline_s, "deadline_s");
  ModelOptions made;
  if (given.urgency > 0) made.urgency = given.urgency;
  if (given.rate > 0) made.rate = given.rate;
  if (given.deadline_s > 0) made.deadline_s = given.deadline_s;
  if (given.keep > 0) made.keep = given.keep;
  return made;
}

// As the session's own runtime reads them.
json::Object SessionOptionsOf(const flexcomp_options& given) {
  if (given.budget != FLEXCOMP_BUDGET_DEFAULT || given.threads != 0 || given.compute_cpus != nullptr)
    Raise("InputError", "a member of a pool has the pool's budget, threads and cores: leave its own unset");
  if (given.source != nullptr) Raise(kUnsupported, "a member of a pool reads its weights from a file: open a session for another source");
  if ((given.flags & FLEXCOMP_TRACE) != 0) Raise(kUnsupported, "a member of a pool notes no trace: open a session for FLEXCOMP_TRACE");
  json::Object made;
  if ((given.flags & FLEXCOMP_VERIFY) != 0) made.Set("verify", true);
  if ((given.flags & FLEXCOMP_PAGE_CACHE) != 0) made.Set("direct", false);
  if ((given.flags & FLEXCOMP_NO_AFFINITY) != 0) made.Set("affinity", false);
  if ((given.flags & FLEXCOMP_NO_WORK_STEALING) != 0) made.Set("help", false);
  if (given.loader_cpus != nullptr) made.Set("loader_cpu", given.loader_cpus);
  if (given.read_bandwidth > 0) made.Set("read_bandwidth", given.read_bandwidth);
  return made;
}

// All that descriptions need.
Shapes DescriptionsOf(const Shapes& shapes) {
  std::vector<std::shared_ptr<const Program>> programs;
  for (const auto& program : shapes.programs()) {
    const auto made = std::make_shared<Program>();
    made->threads = program->threads;
    made->weights = {};
    if (const auto pad = program->metadata.find("pad"); pad != program->metadata.end()) made->metadata.insert(*pad);
    made->inputs = program->inputs;
    made->outputs = program->outputs;
    made->states = program->states;
    made->values = program->values;
    made->rungs = program->rungs;
    programs.push_back(made);
  }
  return Shapes(std::move(programs));
}

flexcomp_pool_stats StatsOf(Pool& pool) {
  const json::Object plan = pool.Plan(), now = pool.Stats(false);
  const auto number = [](const json::Object& said, const char* name) { return static_cast<uint64_t>(said[tvm::ffi::String(name)].cast<int64_t>()); };
  flexcomp_pool_stats made{};
  made.budget = number(plan, "budget_bytes");
  made.planned = number(plan, "bytes");
  made.least = number(plan, "least_bytes");
  made.most = number(plan, "most_bytes");
  made.shared = number(now, "shared_bytes");
  made.claimed = number(now, "claimed_bytes");
  made.resident = number(now, "resident_bytes");
  made.members = static_cast<uint32_t>(plan["models"].cast<json::Array>().size());
  made.lanes = static_cast<uint32_t>(plan["lane_bytes"].cast<json::Array>().size());
  return made;
}

RequestOptions OptionsOf(const flexcomp_request_options& given) {
  if ((given.flags & ~uint32_t{FLEXCOMP_LATE}) != 0) RaiseError("InputError", "there are no flags ", given.flags & ~uint32_t{FLEXCOMP_LATE}, " of requests");
  if (given.reserved != 0) RaiseError("InputError", "the member \"reserved\" is ", given.reserved, ", not 0");
  RequireNonNegative(given.deadline_s, "deadline_s");
  RequestOptions made;
  if (given.deadline_s > 0) made.deadline_s = given.deadline_s;
  made.late = (given.flags & FLEXCOMP_LATE) != 0;
  return made;
}

}  // namespace

std::shared_ptr<Pool> FindPool(flexcomp_pool* handle) { return Pools().Find(handle); }

}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_pool_open(const flexcomp_pool_options* options, flexcomp_pool** pool) {
  if (pool != nullptr) *pool = nullptr;
  return api::Guarded([&] {
    api::RequirePointer(pool, "pool");
    const PoolOptions made = api::OptionsOf(api::Taken(options, sizeof *options, "options"));
    *pool = api::Pools().Keep(std::shared_ptr<Pool>(Pool::Owner(new Pool(made))));
  });
}

flexcomp_status flexcomp_pool_add(flexcomp_pool* pool, const char* name, const char* path, const flexcomp_member_options* given,
                                  flexcomp_session** session) {
  if (session != nullptr) *session = nullptr;
  return api::Guarded([&] {
    const std::shared_ptr<Pool> found = api::FindPool(pool);
    api::RequirePointer(name, "name");
    api::RequirePointer(path, "library");
    api::RequirePointer(session, "session");
    const flexcomp_member_options member =
        given == nullptr ? flexcomp_member_options FLEXCOMP_MEMBER_OPTIONS_INIT : api::Taken(given, sizeof member, "options");
    const flexcomp_options options = api::TakenOptions(member.session);
    const tvm::ffi::json::Object session_options = api::SessionOptionsOf(options);
    const LoadedLibrary library = LoadLibrary(path);
    Shapes described = api::DescriptionsOf(api::ShapesOf(library, path));
    const std::string weights = options.weights == nullptr ? library.weights : options.weights;
    const auto joining = std::make_shared<api::Member>(found, std::move(described));
    api::Kept kept(api::Keep(joining), api::Forget);
    joining->Join(found->Add(name, api::OptionsOf(member), library.program, library.path, weights, session_options));
    *session = kept.Release();
  });
}

flexcomp_status flexcomp_pool_set_budget(flexcomp_pool* pool, uint64_t budget) {
  return api::Guarded([&] { api::FindPool(pool)->SetBudget(budget); });
}

flexcomp_status flexcomp_pool_get_stats(flexcomp_pool* pool, flexcomp_pool_stats* stats) {
  return api::Guarded([&] {
    const std::shared_ptr<Pool> found = api::FindPool(pool);
    const flexcomp_pool_stats made = api::StatsOf(*found);
    api::Give(stats, made, sizeof made, "stats");
  });
}

flexcomp_status flexcomp_pool_close(flexcomp_pool* pool) {
  return api::Guarded([&] {
    if (pool == nullptr) return;
    const std::shared_ptr<Pool> found = api::Pools().Forget(pool);
    found->Close();
    api::ForgetMembers(found.get());  // with those that came until then
    api::Requesteds().ForgetAll([&](const api::Requested& request) noexcept { return request.pool == found; });
  });
}

flexcomp_status flexcomp_member_get_stats(flexcomp_session* session, flexcomp_member_stats* stats) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    if (found->member == nullptr) Raise(api::kUnsupported, "the session is no member of a pool");
    const flexcomp_member_stats made = found->member->Counts();
    api::Give(stats, made, sizeof made, "stats");
  });
}

flexcomp_status flexcomp_submit(flexcomp_session* session, const flexcomp_tensor* inputs, uint32_t input_count, const flexcomp_tensor* outputs,
                                uint32_t output_count, const flexcomp_request_options* given, flexcomp_request** request) {
  if (request != nullptr) *request = nullptr;
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    api::RequirePointer(request, "request");
    if (found->member == nullptr) Raise(api::kUnsupported, "the session is no member of a pool: it runs, but takes no requests");
    const RequestOptions options = given == nullptr ? RequestOptions() : api::OptionsOf(api::Taken(given, sizeof *given, "options"));
    const api::Ports ports(found->shapes(), inputs, input_count, outputs, output_count);
    const std::shared_ptr<Pool>& pool = found->member->owner();
    const uint64_t ticket = pool->Ticket();
    api::Kept kept(api::Requesteds().Keep(std::make_shared<api::Requested>(pool, ticket)), api::Over);
    found->member->Submit(ticket, options, ports.inputs, ports.outputs);
    *request = kept.Release();
  });
}

flexcomp_status flexcomp_wait(flexcomp_request* request) {
  return api::Guarded([&] {
    const std::shared_ptr<api::Requested> found = api::Requesteds().Find(request);
    if (found->waited.exchange(true)) Raise("InputError", "another thread waits for the request already");
    const api::Kept kept(request, api::Over);
    api::RequireRun(found->pool->Wait(found->ticket));
  });
}

flexcomp_status flexcomp_cancel_request(flexcomp_request* request) {
  return api::Guarded([&] {
    const std::shared_ptr<api::Requested> found = api::Requesteds().Find(request);
    found->pool->Cancel(found->ticket);
  });
}

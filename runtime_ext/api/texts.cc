// Descriptions in JSON, and measurements.
#include <flexcomp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "api/members.h"
#include "api/pools.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "base/error.h"
#include "base/json_text.h"
#include "session/describe.h"

namespace flexcomp::api {
namespace {

std::string TextOf(const Opened& opened, flexcomp_text which) {
  if (opened.member != nullptr && which == FLEXCOMP_TEXT_STATS) return std::string(JsonText(opened.member->Said()));
  Session& session = opened.own();
  switch (which) {
    case FLEXCOMP_TEXT_NETWORK: return DescribeNetwork(session.shapes());
    case FLEXCOMP_TEXT_STATS: return DescribeState(session.shapes(), session.state());
    case FLEXCOMP_TEXT_TRACE: return DescribeTrace(session.trace());
    case FLEXCOMP_TEXT_DEVICE_RATES: return DescribeRates(session.MeasureDevice());
    default: RaiseError(kUnsupported, "a session has no text ", which);
  }
}

std::string TextOf(Pool& pool, flexcomp_text which) {
  switch (which) {
    case FLEXCOMP_TEXT_STATS: return std::string(JsonText(pool.Stats(false)));
    case FLEXCOMP_TEXT_PLAN: return std::string(JsonText(pool.Plan()));
    default: RaiseError(kUnsupported, "a pool has no text ", which);
  }
}

void RequireCallback(flexcomp_text_callback give) {
  if (give == nullptr) Raise("InputError", "argument \"give\" is NULL");
}

}  // namespace
}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_get_text(flexcomp_session* session, flexcomp_text which, flexcomp_text_callback give, void* context) {
  return api::Guarded([&] {
    const auto found = which == FLEXCOMP_TEXT_DEVICE_RATES ? api::FindOpenedToWait(session) : api::FindOpened(session);
    api::RequireCallback(give);
    give(context, api::TextOf(*found, which).c_str());
  });
}

flexcomp_status flexcomp_pool_get_text(flexcomp_pool* pool, flexcomp_text which, flexcomp_text_callback give, void* context) {
  return api::Guarded([&] {
    const std::shared_ptr<Pool> found = api::FindPool(pool);
    api::RequireCallback(give);
    give(context, api::TextOf(*found, which).c_str());
  });
}

flexcomp_status flexcomp_measure_storage(flexcomp_session* session, uint64_t request, uint64_t nbytes, double* bytes_per_s) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    api::RequirePointer(bytes_per_s, "bytes_per_s");
    if (request == 0 || nbytes == 0) RaiseError("InputError", "reads of ", request, " bytes, ", nbytes, " in all");
    *bytes_per_s = found->ReadRate(request, nbytes);
  });
}

// Several models in one process, for boards without Python.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "json.h"

namespace flexcomp::runner {

// Runs the models; the report:
//   start_ms                from the start of the process, at `started` nanoseconds of the monotonic clock, until requests begin
//   idle_rss_bytes          resident memory with all models open
//   peak_rss_bytes          the most after that; inputs and outputs have memory of their own
//   plan                    FLEXCOMP_TEXT_PLAN, at the end
//   models                  by name: latency_ms and wait_ms, lists; median_ms of both together; refused; stats
// Throws UsageError, std::runtime_error.
Json RunPool(const Arguments& arguments, int64_t started);

}  // namespace flexcomp::runner

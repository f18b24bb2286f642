#include "notes.h"

#include <sched.h>

#include <string>
#include <thread>

namespace flexcomp::runner {
namespace {

namespace json = tvm::ffi::json;

// Cores that compute threads may run on.
int64_t CoresOf(const json::Object& stats) {
  if (const auto named = stats["compute_cpus"].try_cast<json::Array>()) return static_cast<int64_t>(named->size());
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::thread::hardware_concurrency();  // there are more than fit into a set
}

}  // namespace

json::Array Notes(const json::Object& stats) {
  json::Array notes;
  const auto threads = stats["threads"].cast<int64_t>();
  if (const int64_t cores = CoresOf(stats); cores > 0 && threads > cores)
    notes.push_back(tvm::ffi::String(std::to_string(threads) + " threads share " + std::to_string(cores) +
                                     (cores == 1 ? " core" : " cores") + " and wait for each other: fewer are faster"));
  return notes;
}

}  // namespace flexcomp::runner

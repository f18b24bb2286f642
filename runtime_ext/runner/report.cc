#include "report.h"

#include <algorithm>
#include <vector>

#include "notes.h"

namespace flexcomp::runner {

namespace json = tvm::ffi::json;

void AddModel(json::Object& report, const Model& model, const json::Object& stats, const Arguments& arguments, uint64_t idle_rss,
              uint64_t peak_rss) {
  for (const char* key : {"budget_bytes", "arena_bytes", "rung", "threads", "compute_cpus", "loader_cpus", "direct_io"})
    report.Set(key, stats[key]);
  report.Set("asked_bytes", static_cast<int64_t>(model.asked()));
  const std::vector<Model::Rung> ladder = model.Ladder();
  const auto next = std::ranges::find_if(ladder, [used = stats["budget_bytes"].cast<int64_t>()](const auto& rung) { return rung.budget > used; });
  report.Set("next_budget_bytes", next != ladder.end() ? json::Value(next->budget) : json::Value(nullptr));
  report.Set("notes", Notes(stats));
  report.Set("idle_rss_bytes", static_cast<int64_t>(idle_rss));
  report.Set("peak_rss_bytes", static_cast<int64_t>(peak_rss));
  if (arguments.read_rate > 0) report.Set("read_bytes_per_s", model.ReadRate(arguments.read_rate));
  if (arguments.device_rates) report.Set("device_rates", model.DeviceRates());
}

}  // namespace flexcomp::runner

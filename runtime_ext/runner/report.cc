#include "report.h"

#include <algorithm>
#include <vector>

#include "notes.h"

namespace flexcomp::runner {
namespace {

// Bytes per second of the storage alone, by reads of `request` bytes, about as many as an inference needs.
double ReadRate(const Model& model, uint64_t request) {
  double rate;
  Require(flexcomp_measure_storage(model.session(), request, std::clamp<uint64_t>(model.Stats().bytes_read, 64 << 20, 512 << 20), &rate));
  return rate;
}

}  // namespace

void AddModel(Json& report, const Model& model, const Arguments& arguments, uint64_t idle_rss, uint64_t peak_rss) {
  const flexcomp_session_info info = model.info();
  const flexcomp_budget_info plan = model.Plan();
  report.Set("budget_bytes", plan.budget);
  report.Set("arena_bytes", plan.arena);
  report.Set("rung", model.rung());
  report.Set("threads", info.threads);
  report.Set("compute_cpus", CoresIn(info.compute_cpus));
  report.Set("loader_cpus", CoresIn(info.loader_cpus));
  report.Set("direct_io", model.Stats().direct != 0);
  report.Set("asked_bytes", model.asked());
  const std::vector<flexcomp_budget_info> ladder = model.Ladder();
  const auto next = std::ranges::find_if(ladder, [&](const auto& rung) { return rung.budget > plan.budget; });
  report.Set("next_budget_bytes", next != ladder.end() ? Json(next->budget) : Json(nullptr));
  report.Set("notes", Notes(info));
  report.Set("idle_rss_bytes", idle_rss);
  report.Set("peak_rss_bytes", peak_rss);
  if (arguments.read_rate > 0) report.Set("read_bytes_per_s", ReadRate(model, static_cast<uint64_t>(arguments.read_rate)));
  if (arguments.device_rates) report.Set("device_rates", Json::Parsed(Text(flexcomp_get_text, model.session(), FLEXCOMP_TEXT_DEVICE_RATES)));
}

}  // namespace flexcomp::runner

// What a pool says of itself, as JSON.
#include <algorithm>

#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {
namespace {

namespace json = tvm::ffi::json;

int64_t Int(uint64_t value) { return static_cast<int64_t>(value); }

json::Value OrNull(const std::optional<double>& number) { return number ? json::Value(*number) : json::Value(nullptr); }

}  // namespace

json::Object Pool::Plan() {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  const double now = Now();
  json::Array lanes, models;
  uint64_t needed = 0;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    needed += LaneTarget(lane);
    lanes.push_back(Int(LaneTarget(lane)));
  }
  for (const auto& network : networks_) needed += network->ladder()[network->target].kept;
  for (const auto& [number, model] : models_) {
    const Network& network = *model.network;
    const ShareRung& rung = network.ladder()[network.target];
    json::Object one;
    one.Set("name", model.name);
    one.Set("lane", int64_t{network.lane});
    one.Set("urgency", model.options.urgency);
    one.Set("rate", RateOf(model, now));
    one.Set("deadline_ms", OrNull(model.options.deadline_s ? std::optional(*model.options.deadline_s * 1e3) : std::nullopt));
    one.Set("rung", Int(network.target));
    one.Set("rungs", Int(network.ladder().size()));
    one.Set("working_bytes", Int(rung.working));
    one.Set("kept_bytes", Int(rung.kept));
    one.Set("predicted_ms", rung.seconds * 1e3);
    one.Set("likely_ms", network.latency.Likely(rung.seconds) * 1e3);
    models.push_back(one);
  }
  uint64_t least = 0, most = 0;
  std::vector<uint64_t> widest(lanes_.size(), 0);
  for (const auto& network : networks_) {
    most += std::ranges::max_element(network->ladder(), {}, &ShareRung::kept)->kept;
    const uint64_t working = std::ranges::max_element(network->ladder(), {}, &ShareRung::working)->working;
    widest[network->lane] = std::max(widest[network->lane], working);
  }
  for (const uint64_t working : widest) most += working;
  if (!networks_.empty()) FindShares(0, now, least);
  json::Object plan;
  plan.Set("budget_bytes", Int(budget_));
  plan.Set("bytes", Int(needed));
  plan.Set("least_bytes", Int(least));
  plan.Set("most_bytes", Int(most));
  plan.Set("lane_bytes", lanes);
  plan.Set("models", models);
  return plan;
}

json::Object Pool::Stats() {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  const double now = Now();
  uint64_t resident = 0;
  for (const auto& network : networks_)
    if (network->broken.empty()) resident += network->ResidentNbytes();
  json::Array lanes;
  for (const auto& lane : lanes_) {
    json::Object one;
    one.Set("bytes", Int(lane->memory.nbytes()));
    resident += lane->memory.Resident();
    one.Set("resident_bytes", Int(lane->memory.Resident()));
    one.Set("busy", lane->running != nullptr);
    one.Set("waiting", Int(lane->queue.size()));
    lanes.push_back(one);
  }
  json::Object models;
  for (const auto& [number, model] : models_) {
    const Network& network = *model.network;
    json::Object one;
    for (const auto& [name, count] : {std::pair{"requests", model.requests}, {"completed", model.completed}, {"failed", model.failed},
                                      {"refused", model.refused}, {"missed", model.missed}, {"dropped", model.dropped},
                                      {"cancelled", model.cancelled}, {"restarts", model.restarts},
                                      {"waiting", model.waiting}, {"running", model.running}})
      one.Set(name, Int(count));
    one.Set("wait_ms", model.wait_s * 1e3);
    one.Set("latency_ms", model.run_s * 1e3);
    one.Set("rate", OrNull(model.rate.PerSecond(now)));
    one.Set("rung", Int(network.rung));
    one.Set("working_bytes", Int(network.ladder()[network.rung].working));
    one.Set("kept_bytes", Int(network.claimed));
    one.Set("broken", network.broken.empty() ? json::Value(nullptr) : json::Value(network.broken));
    one.Set("resident_bytes", Int(network.broken.empty() ? network.ResidentNbytes() : 0));
    if (network.broken.empty()) {
      const json::Object stats = network.Stats();
      for (const char* name : {"stall_ms", "bytes_read", "total_bytes_read"}) one.Set(name, stats[name]);
    }
    models.Set(model.name, one);
  }
  json::Object stats;
  stats.Set("budget_bytes", Int(budget_));
  stats.Set("claimed_bytes", Int(Claimed()));
  stats.Set("resident_bytes", Int(resident));
  stats.Set("reshared", Int(reshared_));
  stats.Set("lanes", lanes);
  stats.Set("models", models);
  return stats;
}

}  // namespace flexcomp

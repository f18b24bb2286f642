// The JSON description of a pool.
#include <algorithm>

#include "base/resident.h"
#include "pool/clock.h"
#include "pool/pool.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

int64_t Int(uint64_t value) { return static_cast<int64_t>(value); }

json::Value OrNull(const std::optional<double>& number) { return number ? json::Value(*number) : json::Value(nullptr); }

// Bytes of the session that are in memory, and the session's description, where the session is not closed meanwhile.
uint64_t AddSession(const Network& network, json::Object& said) try {
  const json::Object stats = network.Stats();
  for (const char* name : {"stall_ms", "bytes_read", "total_bytes_read"}) said.Set(name, stats[name]);
  return network.ResidentNbytes();
} catch (const tvm::ffi::Error&) {
  return 0;
}

}  // namespace

std::string Pool::Broken(const std::string& name) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  RequireOpen();
  const auto& broken = roster_.Find(roster_.NumberOf(name))->network->broken;
  return broken ? broken->message() : "";
}

// Also of a closed pool.
json::Array Pool::Names() {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  json::Array names;
  for (const auto& [number, model] : roster_.models())
    if (!model->leaving) names.push_back(ffi::String(model->name));
  return names;
}

json::Value Pool::Describe(const std::string& name) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  const auto number = roster_.FindNumber(name);
  if (!number) return nullptr;
  const Network& network = *roster_.Find(*number)->network;
  json::Object said;
  said.Set("number", Int(*number));
  said.Set("inputs", network.inputs());
  if (!network.shapes().empty()) said.Set("shapes", network.shapes());
  said.Set("metadata", network.metadata());
  said.Set("outputs", network.outputs());
  return said;
}

std::optional<int64_t> Pool::ShapeOf(uint32_t number, tvm::ffi::PackedArgs extents) {
  RequireThisProcess();
  Lock lock(mutex_);
  const std::shared_ptr<Model> model = roster_.Find(number);
  if (!model) return std::nullopt;
  const std::shared_ptr<Network> network = model->network;
  lock.unlock();
  return network->ShapeOf(extents);
}

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
  Commons commons;
  for (const auto& network : roster_.networks()) {
    needed += !network->broken ? network->target_kept() : 0;
    commons.push_back(network->target_common);
  }
  needed += CommonNbytes(commons);
  for (const auto& [number, entry] : roster_.models()) {
    const Model& model = *entry;
    const Network& network = *model.network;
    const ShareRung& rung = network.ladder()[network.target];
    json::Object one;
    one.Set("name", model.name);
    one.Set("lane", int64_t{network.lane});
    one.Set("urgency", model.options.urgency);
    one.Set("rate", model.RateAt(now));
    one.Set("deadline_ms", OrNull(model.options.deadline_s ? std::optional(*model.options.deadline_s * 1e3) : std::nullopt));
    one.Set("rung", Int(network.target));
    one.Set("rungs", Int(network.ladder().size()));
    one.Set("working_bytes", Int(rung.working));
    one.Set("kept_bytes", Int(network.target_kept()));
    one.Set("shared_bytes", Int(network.target_common ? network.target_common->nbytes() : 0));
    const double seconds = network.MeanSeconds(network.target);
    one.Set("predicted_ms", seconds * 1e3);
    one.Set("likely_ms", network.latency.Likely(seconds) * 1e3);
    models.push_back(one);
  }
  uint64_t least = 0, most = 0;
  std::vector<uint64_t> widest(lanes_.size(), 0);
  for (const auto& network : roster_.networks()) {
    if (!!network->broken) continue;
    most += std::ranges::max_element(network->ladder(), {}, &ShareRung::kept)->kept;
    const uint64_t working = std::ranges::max_element(network->ladder(), {}, &ShareRung::working)->working;
    widest[network->lane] = std::max(widest[network->lane], working);
  }
  for (const uint64_t working : widest) most += working;
  if (!roster_.networks().empty()) roster_.FindShares(0, options_.by_swapnet, false, now, least);
  json::Object plan;
  plan.Set("budget_bytes", Int(budget_));
  plan.Set("bytes", Int(needed));
  plan.Set("shared_bytes", Int(CommonNbytes(commons)));
  plan.Set("least_bytes", Int(least));
  plan.Set("most_bytes", Int(most));
  plan.Set("lane_bytes", lanes);
  plan.Set("models", models);
  return plan;
}

json::Object Pool::Stats(bool at_once) {
  RequireThisProcess();
  struct Seen {
    std::string name;
    std::shared_ptr<const Network> network;
    bool broken;
    json::Object said;
  };
  std::vector<Seen> models;
  std::vector<std::pair<const LaneMemory*, json::Object>> lanes;
  std::vector<uint64_t> lane_nbytes;
  json::Object stats;
  Lock lock(mutex_);
  RequireOpen();
  const double now = Now();
  for (const auto& lane : lanes_) {
    json::Object one;
    one.Set("bytes", Int(lane->memory.nbytes()));
    one.Set("busy", lane->running != nullptr);
    one.Set("waiting", Int(lane->queue.size()));
    lanes.emplace_back(&lane->memory, one);
    lane_nbytes.push_back(lane->memory.nbytes());
  }
  for (const auto& [number, model] : roster_.models())
    models.push_back({model->name, model->network, model->network->broken.has_value(), SaidOf(*model, now)});
  stats.Set("budget_bytes", Int(budget_));
  stats.Set("claimed_bytes", Int(Claimed()));
  stats.Set("shared_bytes", Int(shared_nbytes_));
  stats.Set("reshared", Int(reshared_));
  std::vector<std::shared_ptr<SharedWeights>> shared;  // that are held
  for (const auto& network : roster_.networks())
    if (network->holds)
      for (const auto& [number, weights] : network->common->weights)
        if (std::ranges::find(shared, weights) == shared.end()) shared.push_back(weights);
  // Looking through memory takes long: unless all is to be of one moment, requests and models come and go meanwhile.
  if (!at_once) lock.unlock();
  uint64_t resident = 0;
  for (const auto& weights : shared) resident += ResidentBytes(weights->base(), weights->nbytes);
  json::Array said_lanes;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const uint64_t own = lanes[i].first->Resident(lane_nbytes[i]);
    lanes[i].second.Set("resident_bytes", Int(own));
    said_lanes.push_back(lanes[i].second);
    resident += own;
  }
  json::Object said_models;
  std::vector<const Network*> counted;
  for (Seen& seen : models) {
    const uint64_t own = seen.broken ? 0 : AddSession(*seen.network, seen.said);
    seen.said.Set("resident_bytes", Int(own));
    said_models.Set(seen.name, seen.said);
    if (std::ranges::find(counted, seen.network.get()) != counted.end()) continue;
    counted.push_back(seen.network.get());
    resident += own;
  }
  stats.Set("resident_bytes", Int(resident));
  stats.Set("lanes", said_lanes);
  stats.Set("models", said_models);
  return stats;
}

std::optional<json::Object> Pool::StatsOf(uint32_t number) {
  RequireThisProcess();
  Lock lock(mutex_);
  RequireOpen();
  const std::shared_ptr<Model> model = roster_.Find(number);
  if (!model) return std::nullopt;
  json::Object said = SaidOf(*model, Now());
  const std::shared_ptr<const Network> network = model->network;
  lock.unlock();
  said.Set("session", network->Stats());
  said.Set("resident_bytes", Int(network->ResidentNbytes()));
  return said;
}

json::Object Pool::SaidOf(const Model& model, double now) {
  const Network& network = *model.network;
  json::Object said;
  for (const auto& [name, count] : {
           std::pair{"requests", model.requests},
           {"completed", model.completed},
           {"failed", model.failed},
           {"refused", model.refused},
           {"missed", model.missed},
           {"dropped", model.dropped},
           {"cancelled", model.cancelled},
           {"restarts", model.restarts},
           {"waiting", model.waiting},
           {"running", model.running},
       })
    said.Set(name, Int(count));
  said.Set("wait_ms", model.wait_s * 1e3);
  said.Set("latency_ms", model.run_s * 1e3);
  said.Set("total_latency_ms", model.total_run_s * 1e3);
  said.Set("total_stall_ms", model.total_stall_s * 1e3);
  said.Set("rate", OrNull(model.rate.PerSecond(now)));
  said.Set("rung", Int(network.rung));
  said.Set("working_bytes", Int(network.ladder()[network.rung].working));
  said.Set("kept_bytes", Int(network.claimed));
  said.Set("shared_bytes", Int(network.holds ? network.common->nbytes() : 0));
  said.Set("broken", network.broken ? json::Value(network.broken->message()) : json::Value(nullptr));
  return said;
}

}  // namespace flexcomp

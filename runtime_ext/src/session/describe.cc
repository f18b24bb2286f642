#include "session/describe.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/json_options.h"
#include "base/json_text.h"
#include "program/shareable.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

int64_t Int(uint64_t value) { return static_cast<int64_t>(value); }

template <typename Items, typename Function>
json::Array ArrayOf(const Items& items, const Function& of) {
  json::Array array;
  for (const auto& item : items) array.push_back(of(item));
  return array;
}

json::Object PortObject(const Port& port) {
  return {{"name", port.name}, {"shape", json::Array(port.type.shape.begin(), port.type.shape.end())}, {"dtype", DtypeName(port.type.dtype)}};
}

json::Object StateObject(const State& state) {
  json::Object object = PortObject({state.input, state.value, state.type});
  object.Set("output", state.output);
  return object;
}

json::Object RungObject(const RungHead& rung) {
  return {
      {"budget_bytes", Int(rung.budget)},
      {"arena_bytes", Int(rung.arena)},
      {"working_bytes", Int(rung.working)},
      {"pinned_bytes", Int(rung.pinned)},
      {"streamed_bytes", Int(rung.streamed)},
      {"predicted_ms", rung.predicted_s * 1e3},
  };
}

json::Object Summary(const Program& program) {
  return {
      {"model", program.model},
      {"threads", int64_t{program.threads}},
      {"inputs", ArrayOf(program.inputs, PortObject)},
      {"outputs", ArrayOf(program.outputs, PortObject)},
      {"states", ArrayOf(program.states, StateObject)},
      {"state_bytes", program.states.empty() ? int64_t{0} : Int(program.values[program.states.front().value].nbytes)},
      {"min_budget_bytes", Int(program.rungs.front().budget)},
      {"default_budget_bytes", Int(DefaultBudget(program))},
      {"resident_bytes", Int(program.rungs.back().budget)},
      {"weights_bytes", Int(program.weights.data_nbytes)},
      {"ladder", ArrayOf(program.rungs, RungObject)},
  };
}

// Of all shapes: -1 for extents that differ.
json::Array PortsOf(const Shapes& shapes, std::vector<Port> Program::* ports) {
  std::vector<Port> merged = shapes[0].*ports;
  for (const auto& program : shapes.programs())
    for (size_t i = 0; i < merged.size(); ++i)
      for (size_t axis = 0; axis < merged[i].type.shape.size(); ++axis)
        if (((*program).*ports)[i].type.shape[axis] != (shapes[0].*ports)[i].type.shape[axis]) merged[i].type.shape[axis] = -1;
  return ArrayOf(merged, PortObject);
}

json::Object ShapeObject(const Program& program) {
  json::Object object = Summary(program), said;
  const auto extents = program.metadata.find("extents");
  said.Set("extents", extents == program.metadata.end() ? json::Value(json::Object()) : json::Parse(extents->second));
  for (const char* name : {"inputs", "outputs", "min_budget_bytes", "default_budget_bytes", "resident_bytes", "ladder"}) said.Set(name, object[name]);
  return said;
}

// The shape whose smallest budget is the largest: it decides what is enough for all.
const Program& Neediest(const Shapes& shapes) {
  const auto smallest = [](const auto& program) { return program->rungs.front().budget; };
  return **std::ranges::max_element(shapes.programs(), {}, smallest);
}

// What differs from a library of the first shape alone.
void SetShapes(json::Object& object, const Shapes& shapes) {
  if (shapes.size() == 1) return;
  const uint64_t smallest = Neediest(shapes).rungs.front().budget;
  object.Set("inputs", PortsOf(shapes, &Program::inputs));
  object.Set("outputs", PortsOf(shapes, &Program::outputs));
  object.Set("shapes", ArrayOf(shapes.programs(), [](const auto& program) { return ShapeObject(*program); }));
  const auto in_lane = [&](const LaneRung& rung) {
    json::Array predicted;
    for (size_t i = 0; i < shapes.size(); ++i) predicted.push_back(shapes[i].rungs[rung.rungs[i]].predicted_s * 1e3);
    return json::Object{
        {"working_bytes", Int(rung.working)},
        {"arena_bytes", Int(rung.working + rung.kept)},
        {"predicted_ms", predicted[0]},
        {"shapes_ms", predicted},
    };
  };
  object.Set("lane_ladder", ArrayOf(LaneLadder(shapes), in_lane));
  // The plans of the first shape for budgets that are enough for all.
  const auto for_all = [&](RungHead rung) {
    rung.budget = std::max(rung.budget, smallest);
    return RungObject(rung);
  };
  const std::span<const RungHead> rungs = shapes[0].rungs;
  object.Set("ladder", ArrayOf(rungs.subspan(RungFor(shapes[0], smallest)), for_all));
  object.Set("min_budget_bytes", Int(smallest));
  object.Set("default_budget_bytes", Int(shapes.Most(DefaultBudget)));
  object.Set("resident_bytes", Int(shapes.Most([](const Program& program) { return program.rungs.back().budget; })));
}

json::Object LayerObject(const Layer& layer) {
  return {
      {"name", layer.name},
      {"op", layer.op},
      {"kernel", layer.kernel},
      {"implementation", layer.implementation},
      {"description", layer.description},
      {"weights_bytes", layer.weights ? Int(layer.weights->nbytes()) : int64_t{0}},
      {"blocks", layer.weights ? int64_t{layer.weights->blocks} : int64_t{1}},
      {"scratch_bytes", Int(layer.scratch_nbytes)},
      {"flops", Int(layer.flops)},
  };
}

json::Array SpanPair(const Span& span) { return {span.begin, span.end}; }

// None: wherever the system likes.
json::Value Cpus(const CpuSet& set) {
  if (set.empty()) return nullptr;
  return ArrayOf(set.cpus(), [](int cpu) { return int64_t{cpu}; });
}

std::string Text(const json::Value& value) { return std::string(JsonText(value)); }

// Cores as a number, a list of numbers, or Linux's list format, "0-3,6".
void TakeCpus(JsonOptions& given, const char* name, CpuSet& set) {
  const auto value = given.Find(name);
  if (!value) return;
  if (auto list = value->try_cast<ffi::String>()) {
    set = CpuSet::Parse(*list);
    return;
  }
  std::vector<int> cpus;
  for (const ffi::Any& cpu : value->try_cast<json::Array>().value_or(json::Array{*value}))
    cpus.push_back(static_cast<int>(std::min<uint64_t>(JsonOptions::Natural(name, cpu), INT32_MAX)));
  if (cpus.empty()) RaiseError("InputError", "option \"", name, "\" names no core");
  set = CpuSet(cpus);
}

}  // namespace

std::string DescribeNetwork(const Shapes& shapes, bool brief) {
  const Program& program = shapes[0];
  json::Object object = Summary(program), metadata;
  for (const auto& [key, value] : program.metadata)
    if (!brief || key == "minimum" || key == "pad") metadata.Set(key, value);
  const auto& of_neediest = Neediest(shapes).metadata;
  if (const auto found = of_neediest.find("minimum"); found != of_neediest.end()) metadata.Set(found->first, found->second);
  if (!brief) {
    object.Set("target", program.target);
    object.Set("features", ArrayOf(program.features, [](const std::string& feature) { return ffi::String(feature); }));
    object.Set("layers", ArrayOf(program.layers, LayerObject));
  }
  object.Set("metadata", metadata);
  SetShapes(object, shapes);
  return Text(object);
}

std::string DescribeShareable(const Program& program) {
  const std::vector<Shareable> all = FindShareables(program).all;
  return Text(json::Object{
      {"keys", ArrayOf(all, [](const Shareable& one) { return ffi::String(one.key); })},
      {"bytes", ArrayOf(all, [](const Shareable& one) { return Int(one.nbytes); })},
  });
}

std::string DescribeResting(const Program& program) {
  const Shareables shareables = FindShareables(program);
  json::Array rungs;
  for (const RungHead& head : program.rungs) {
    json::Array said;
    try {
      Rung rung;
      ReadPlan(head, program, rung);
      for (const Resting& one : FindResting(rung, program, shareables)) said.push_back(json::Array{int64_t{one.shareable}, Int(one.freed())});
    } catch (const ffi::Error&) {  // whoever uses the rung is told
    }
    rungs.push_back(said);
  }
  return Text(rungs);
}

std::string DescribeCores(const CoreChoice& choice) {
  return Text(json::Object{{"compute_cpus", Cpus(choice.compute)}, {"loader_cpus", Cpus(choice.loader)}});
}

std::string DescribeStorage(const StorageRates& rates) {
  return Text(json::Object{{"bytes_per_s", rates.bytes_per_s},
                           {"small_pages_bytes_per_s", rates.small_pages_bytes_per_s},
                           {"latency_s", rates.latency_s},
                           {"direct_io", rates.direct}});
}

std::string DescribeRates(const DeviceRates& rates) {
  return Text(json::Object{
      {"copy_bytes_per_s", rates.copy_bytes_per_s},
      {"launch_s", rates.launch_s},
      {"wait_s", rates.wait_s},
      {"event_s", rates.event_s},
  });
}

std::string DescribeRung(const RungHead& rung) { return Text(RungObject(rung)); }

std::string DescribeState(const Shapes& shapes, const Session::State& state) {
  const RungHead& rung = shapes[state.shape].rungs[state.rung];
  const SessionStats& stats = state.stats;
  return Text(json::Object{
      {"shape", Int(state.shape)},
      {"rung", Int(state.rung)},
      {"budget_bytes", Int(rung.budget)},
      {"arena_bytes", Int(rung.arena)},
      {"threads", int64_t{state.placement.threads}},
      {"compute_cpus", Cpus(state.placement.compute)},
      {"loader_cpus", Cpus(state.placement.loader)},
      {"direct_io", state.direct},
      {"staging_bytes", Int(state.staging_nbytes)},
      {"runs", Int(stats.runs)},
      {"restarts", Int(stats.restarts)},
      {"latency_ms", stats.latency_s * 1e3},
      {"stall_ms", stats.stall_s * 1e3},
      {"read_ms", SecondsOf(stats.loads.busy_ns) * 1e3},
      {"bytes_read", Int(stats.loads.bytes)},
      {"reads", Int(stats.loads.reads)},
      {"prepared_bytes", Int(stats.loads.prepared_bytes)},
      {"prepare_ms", SecondsOf(stats.loads.prepare_ns) * 1e3},
      {"help_ms", SecondsOf(stats.loads.help_ns) * 1e3},
      {"total_bytes_read", Int(stats.total_bytes_read)},
  });
}

std::string DescribeTrace(const Trace& trace) {
  return Text(json::Object{
      {"rung", Int(trace.rung)},
      {"begin_ns", trace.whole.begin},
      {"end_ns", trace.whole.end},
      {"steps", ArrayOf(trace.steps, SpanPair)},
      {"loads", ArrayOf(trace.loads, [](const LoadSpans& load) { return SpanPair(load.read); })},
      {"prepares", ArrayOf(trace.loads, [](const LoadSpans& load) { return SpanPair(load.prepare); })},
  });
}

SessionOptions ParseOptions(const std::string& text) {
  JsonOptions given(text, "session options");
  SessionOptions options;
  uint64_t lane_address = 0;
  given.Take("library_path", options.library_path);
  given.Take("budget_bytes", options.budget);
  given.Take("lane_address", lane_address);
  given.Take("lane_bytes", options.lane.nbytes);
  given.Take("other_threads", options.other_threads);
  given.Take("threads", options.threads);
  TakeCpus(given, "loader_cpu", options.cores.loader);
  TakeCpus(given, "compute_cpus", options.cores.compute);
  given.Take("affinity", options.cores.affinity);
  given.Take("sysfs_cpus", options.cores.root);
  given.Take("help", options.help);
  given.Take("trace", options.trace);
  given.Take("verify", options.storage.verify);
  given.Take("direct", options.storage.direct);
  given.Take("read_bandwidth", options.storage.read_bandwidth);
  given.Take("fail_read_at", options.storage.fail_read_at);
  given.RequireKnown();
  options.lane.base = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(lane_address));
  if (!std::isfinite(options.storage.read_bandwidth) || options.storage.read_bandwidth < 0)
    Raise("InputError", "option \"read_bandwidth\" must be a number of bytes per second");
  return options;
}

}  // namespace flexcomp

#include "session/describe.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/json_text.h"
#include "program/shareable.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

int64_t Int(uint64_t value) { return static_cast<int64_t>(value); }

json::Array Ports(const std::vector<Port>& ports) {
  json::Array array;
  for (const Port& port : ports) {
    json::Array shape;
    for (const int64_t extent : port.type.shape) shape.push_back(extent);
    json::Object object;
    object.Set("name", port.name);
    object.Set("shape", shape);
    object.Set("dtype", DtypeName(port.type.dtype));
    array.push_back(object);
  }
  return array;
}

json::Array States(const std::vector<State>& states) {
  json::Array array;
  for (const State& state : states) {
    json::Object object = Ports({{state.input, state.value, state.type}})[0].cast<json::Object>();
    object.Set("output", state.output);
    array.push_back(object);
  }
  return array;
}

json::Array Strings(const std::vector<std::string>& strings) {
  json::Array array;
  for (const std::string& text : strings) array.push_back(ffi::String(text));
  return array;
}

json::Object RungObject(const RungHead& rung) {
  json::Object object;
  object.Set("budget_bytes", Int(rung.budget));
  object.Set("arena_bytes", Int(rung.arena));
  object.Set("working_bytes", Int(rung.working));
  object.Set("pinned_bytes", Int(rung.pinned));
  object.Set("streamed_bytes", Int(rung.streamed));
  object.Set("predicted_ms", rung.predicted_s * 1e3);
  return object;
}

json::Object Summary(const Program& program) {
  json::Array ladder;
  for (const RungHead& rung : program.rungs) ladder.push_back(RungObject(rung));
  json::Object object;
  object.Set("model", program.model);
  object.Set("threads", static_cast<int64_t>(program.threads));
  object.Set("inputs", Ports(program.inputs));
  object.Set("outputs", Ports(program.outputs));
  object.Set("states", States(program.states));
  object.Set("state_bytes", program.states.empty() ? int64_t{0} : Int(program.values[program.states.front().value].nbytes));
  object.Set("min_budget_bytes", Int(program.rungs.front().budget));
  object.Set("default_budget_bytes", Int(DefaultBudget(program)));
  object.Set("resident_bytes", Int(program.rungs.back().budget));
  object.Set("weights_bytes", Int(program.weights.data_nbytes));
  object.Set("ladder", ladder);
  return object;
}

// Of all shapes: -1 for extents that differ.
json::Array PortsOf(const Shapes& shapes, std::vector<Port> Program::* ports) {
  std::vector<Port> merged = shapes[0].*ports;
  for (const auto& program : shapes.programs())
    for (size_t i = 0; i < merged.size(); ++i)
      for (size_t axis = 0; axis < merged[i].type.shape.size(); ++axis)
        if (((*program).*ports)[i].type.shape[axis] != (shapes[0].*ports)[i].type.shape[axis]) merged[i].type.shape[axis] = -1;
  return Ports(merged);
}

json::Object ShapeObject(const Program& program) {
  json::Object object = Summary(program), said;
  const auto extents = program.metadata.find("extents");
  said.Set("extents", extents == program.metadata.end() ? json::Value(json::Object()) : json::Parse(extents->second));
  for (const char* name : {"inputs", "outputs", "min_budget_bytes", "default_budget_bytes", "resident_bytes", "ladder"}) said.Set(name, object[name]);
  return said;
}

// What differs from a library of the first shape alone.
void SetShapes(json::Object& object, const Shapes& shapes) {
  if (shapes.size() == 1) return;
  object.Set("inputs", PortsOf(shapes, &Program::inputs));
  object.Set("outputs", PortsOf(shapes, &Program::outputs));
  json::Array described;
  const Program* most = &shapes[0];
  uint64_t usual = 0, resident = 0;
  for (const auto& program : shapes.programs()) {
    described.push_back(ShapeObject(*program));
    if (program->rungs.front().budget > most->rungs.front().budget) most = program.get();
    usual = std::max(usual, DefaultBudget(*program));
    resident = std::max(resident, program->rungs.back().budget);
  }
  object.Set("shapes", described);
  json::Array in_lanes;
  for (const LaneRung& rung : LaneLadder(shapes)) {
    json::Object one;
    json::Array predicted;
    for (size_t i = 0; i < shapes.size(); ++i) predicted.push_back(shapes[i].rungs[rung.rungs[i]].predicted_s * 1e3);
    one.Set("working_bytes", Int(rung.working));
    one.Set("arena_bytes", Int(rung.working + rung.kept));
    one.Set("predicted_ms", predicted[0]);
    one.Set("shapes_ms", predicted);
    in_lanes.push_back(one);
  }
  object.Set("lane_ladder", in_lanes);
  // The plans of the first shape for budgets that are enough for all.
  const uint64_t smallest = most->rungs.front().budget;
  const std::vector<RungHead>& rungs = shapes[0].rungs;
  size_t first = 0;
  while (first + 1 < rungs.size() && rungs[first + 1].budget <= smallest) ++first;
  json::Array ladder;
  for (size_t i = first; i < rungs.size(); ++i) ladder.push_back(RungObject(rungs[i]));
  ladder[0].cast<json::Object>().Set("budget_bytes", Int(std::max(smallest, rungs[first].budget)));
  object.Set("ladder", ladder);
  object.Set("min_budget_bytes", Int(smallest));
  object.Set("default_budget_bytes", Int(usual));
  object.Set("resident_bytes", Int(resident));
  auto metadata = object["metadata"].cast<json::Object>();
  if (const auto found = most->metadata.find("minimum"); found != most->metadata.end()) metadata.Set(found->first, found->second);
}

json::Object LayerObject(const Layer& layer) {
  json::Object object;
  object.Set("name", layer.name);
  object.Set("op", layer.op);
  object.Set("kernel", layer.kernel);
  object.Set("implementation", layer.implementation);
  object.Set("description", layer.description);
  object.Set("weights_bytes", layer.weights ? Int(layer.weights->nbytes()) : int64_t{0});
  object.Set("blocks", layer.weights ? int64_t{layer.weights->blocks} : int64_t{1});
  object.Set("scratch_bytes", Int(layer.scratch_nbytes));
  object.Set("flops", Int(layer.flops));
  return object;
}

template <typename Noted, typename SpanOf>
json::Array Spans(const std::vector<Noted>& noted, const SpanOf& span_of) {
  json::Array array;
  for (const Noted& one : noted) array.push_back(json::Array{std::invoke(span_of, one).begin, std::invoke(span_of, one).end});
  return array;
}

// None: wherever the system likes.
json::Value Cpus(const CpuSet& set) {
  if (set.empty()) return nullptr;
  json::Array array;
  for (const int cpu : set.cpus()) array.push_back(int64_t{cpu});
  return array;
}

void SetCores(json::Object& object, const CoreChoice& choice) {
  object.Set("compute_cpus", Cpus(choice.compute));
  object.Set("loader_cpus", Cpus(choice.loader));
}

std::string Text(const json::Value& value) { return std::string(JsonText(value)); }

// Readers of one option each; a wrong type is the user's fault.
template <typename T>
T Option(const ffi::String& name, const ffi::Any& value) {
  if (auto cast = value.try_cast<T>()) return *std::move(cast);
  RaiseError("InputError", "option \"", std::string(name), "\" has a value of the wrong type");
}

int64_t Natural(const ffi::String& name, const ffi::Any& value) {
  const int64_t number = Option<int64_t>(name, value);
  if (number < 0) RaiseError("InputError", "option \"", std::string(name), "\" must not be negative");
  return number;
}

// Cores as a number, a list of numbers, or Linux's list format, "0-3,6".
CpuSet CpusOf(const ffi::String& name, const ffi::Any& value) {
  if (auto list = value.try_cast<ffi::String>()) return CpuSet::Parse(*list);
  const auto number = [&](const ffi::Any& cpu) { return static_cast<int>(std::min<int64_t>(Natural(name, cpu), INT32_MAX)); };
  std::vector<int> cpus;
  if (auto list = value.try_cast<json::Array>())
    for (const ffi::Any& cpu : *list) cpus.push_back(number(cpu));
  else
    cpus.push_back(number(value));
  if (cpus.empty()) RaiseError("InputError", "option \"", std::string(name), "\" names no core");
  return CpuSet(cpus);
}

}  // namespace

std::string SummariseNetwork(const Shapes& shapes) {
  const Program& program = shapes[0];
  json::Object object = Summary(program), metadata;
  for (const char* key : {"minimum", "pad"})
    if (const auto found = program.metadata.find(key); found != program.metadata.end()) metadata.Set(found->first, found->second);
  object.Set("metadata", metadata);
  SetShapes(object, shapes);
  return Text(object);
}

std::string DescribeShareable(const Program& program) {
  json::Array keys, nbytes;
  for (const Shareable& one : FindShareables(program).all) {
    keys.push_back(ffi::String(one.key));
    nbytes.push_back(Int(one.nbytes));
  }
  json::Object object;
  object.Set("keys", keys);
  object.Set("bytes", nbytes);
  return Text(object);
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

std::string DescribeNetwork(const Shapes& shapes) {
  const Program& program = shapes[0];
  json::Array layers;
  for (const Layer& layer : program.layers) layers.push_back(LayerObject(layer));
  json::Object object = Summary(program), metadata;
  for (const auto& [key, value] : program.metadata) metadata.Set(key, value);
  object.Set("target", program.target);
  object.Set("features", Strings(program.features));
  object.Set("layers", layers);
  object.Set("metadata", metadata);
  SetShapes(object, shapes);
  return Text(object);
}

std::string DescribeCores(const CoreChoice& choice) {
  json::Object object;
  SetCores(object, choice);
  return Text(object);
}

std::string DescribeStorage(const StorageRates& rates) {
  json::Object object;
  object.Set("bytes_per_s", rates.bytes_per_s);
  object.Set("latency_s", rates.latency_s);
  object.Set("direct_io", rates.direct);
  return Text(object);
}

std::string DescribeRates(const DeviceRates& rates) {
  json::Object object;
  object.Set("copy_bytes_per_s", rates.copy_bytes_per_s);
  object.Set("launch_s", rates.launch_s);
  object.Set("wait_s", rates.wait_s);
  object.Set("event_s", rates.event_s);
  return Text(object);
}

std::string DescribeRung(const RungHead& rung) { return Text(RungObject(rung)); }

std::string DescribeState(const Shapes& shapes, const Session::State& state) {
  const RungHead& rung = shapes[state.shape].rungs[state.rung];
  const SessionStats& stats = state.stats;
  json::Object object;
  object.Set("shape", Int(state.shape));
  object.Set("rung", Int(state.rung));
  object.Set("budget_bytes", Int(rung.budget));
  object.Set("arena_bytes", Int(rung.arena));
  object.Set("threads", int64_t{state.placement.threads});
  SetCores(object, {state.placement.compute, state.placement.loader});
  object.Set("direct_io", state.direct);
  object.Set("staging_bytes", Int(state.staging_nbytes));
  object.Set("runs", Int(stats.runs));
  object.Set("restarts", Int(stats.restarts));
  object.Set("latency_ms", stats.latency_s * 1e3);
  object.Set("stall_ms", stats.stall_s * 1e3);
  object.Set("read_ms", stats.read_s * 1e3);
  object.Set("bytes_read", Int(stats.bytes_read));
  object.Set("reads", Int(stats.reads));
  object.Set("prepared_bytes", Int(stats.prepared_bytes));
  object.Set("prepare_ms", stats.prepare_s * 1e3);
  object.Set("help_ms", stats.help_s * 1e3);
  object.Set("total_bytes_read", Int(stats.total_bytes_read));
  return Text(object);
}

std::string DescribeTrace(const Trace& trace) {
  json::Object object;
  object.Set("rung", Int(trace.rung));
  object.Set("begin_ns", trace.whole.begin);
  object.Set("end_ns", trace.whole.end);
  object.Set("steps", Spans(trace.steps, std::identity()));
  object.Set("loads", Spans(trace.loads, &LoadSpans::read));
  object.Set("prepares", Spans(trace.loads, &LoadSpans::prepare));
  return Text(object);
}

SessionOptions ParseOptions(const std::string& text) {
  ffi::String error;
  const json::Value parsed = json::Parse(text, &error);
  const auto object = parsed.try_cast<json::Object>();
  if (!error.empty() || !object) Raise("InputError", "session options must be a JSON object");
  SessionOptions options;
  for (const auto& [key, value] : *object) {
    const auto name = key.cast<ffi::String>();
    if (value == nullptr) continue;  // null: the default
    if (name == "library_path") {
      options.library_path = Option<ffi::String>(name, value);
    } else if (name == "budget_bytes") {
      options.budget = Natural(name, value);
    } else if (name == "lane_address") {
      options.lane.base = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(Natural(name, value)));
    } else if (name == "lane_bytes") {
      options.lane.nbytes = Natural(name, value);
    } else if (name == "other_threads") {
      options.other_threads = static_cast<int>(std::min<int64_t>(Natural(name, value), INT32_MAX));
    } else if (name == "threads") {
      options.threads = static_cast<int>(std::min<int64_t>(Natural(name, value), INT32_MAX));
    } else if (name == "loader_cpu") {
      options.cores.loader = CpusOf(name, value);
    } else if (name == "compute_cpus") {
      options.cores.compute = CpusOf(name, value);
    } else if (name == "affinity") {
      options.cores.affinity = Option<bool>(name, value);
    } else if (name == "sysfs_cpus") {
      options.cores.root = Option<ffi::String>(name, value);
    } else if (name == "help") {
      options.help = Option<bool>(name, value);
    } else if (name == "trace") {
      options.trace = Option<bool>(name, value);
    } else if (name == "verify") {
      options.storage.verify = Option<bool>(name, value);
    } else if (name == "direct") {
      options.storage.direct = Option<bool>(name, value);
    } else if (name == "read_bandwidth") {
      options.storage.read_bandwidth = Option<double>(name, value);
      if (!std::isfinite(options.storage.read_bandwidth) || options.storage.read_bandwidth < 0)
        Raise("InputError", "option \"read_bandwidth\" must be a number of bytes per second");
    } else if (name == "fail_read_at") {
      options.storage.fail_read_at = Natural(name, value);
    } else {
      RaiseError("InputError", "unknown session option \"", std::string(name), "\"");
    }
  }
  return options;
}

}  // namespace flexcomp

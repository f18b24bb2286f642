// flexcomp-run: runs an exported model in a process whose memory is the model's.
//
// Prints one JSON object:
//   latency_ms, stall_ms, bytes_read   lists, one entry for each timed inference, from the inputs in the arena to
//                                      the outputs in the arena; stall_ms is the time in which kernels waited for
//                                      weights
//   warmup_ms                          list, the inferences before them; the first loads the pinned weights
//   median_ms                          of latency_ms
//   idle_rss_bytes                     resident memory with the model open and its arena not yet touched
//   peak_rss_bytes                     the most after that; inputs and outputs have no memory but the arena's
//   budget_bytes, arena_bytes, rung, threads, compute_cpus, loader_cpus (null: on any core), direct_io
//   switches                           with --switch-budgets: [{budget_bytes, arena_bytes, switch_ms, latency_ms,
//                                      rss_bytes}], the memory taken after the inference. With --callers the
//                                      memory is taken right after the switch, there is no latency_ms, and beside
//                                      it stands "concurrent": {runs, wrong, restarts}
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "npy.h"
#include "process_memory.h"
#include "switching.h"

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr int kUsageError = 2;
constexpr int kCannotRun = 4;

// An input or output of the model. Its memory is in the session's arena.
struct Port {
  std::string name;
  std::vector<int64_t> shape;
  DLDataType dtype;
  size_t nbytes;
};

DLDataType ParseDtype(const std::string& name) {
  const std::pair<const char*, uint8_t> kinds[] = {
      {"uint", kDLUInt}, {"int", kDLInt}, {"bfloat", kDLBfloat}, {"float", kDLFloat}};
  if (name == "bool") return {kDLBool, 8, 1};
  for (const auto& [kind, code] : kinds)
    if (name.starts_with(kind)) return {code, static_cast<uint8_t>(std::atoi(name.c_str() + std::strlen(kind))), 1};
  throw std::runtime_error("the model has tensors of an unknown type: " + name);
}

std::vector<Port> ParsePorts(const json::Array& described) {
  std::vector<Port> ports;
  for (const ffi::Any& any : described) {
    const auto object = any.cast<json::Object>();
    Port& port = ports.emplace_back();
    port.name = object["name"].cast<std::string>();
    port.dtype = ParseDtype(object["dtype"].cast<std::string>());
    for (const ffi::Any& extent : object["shape"].cast<json::Array>()) port.shape.push_back(extent.cast<int64_t>());
    const int64_t count = std::accumulate(port.shape.begin(), port.shape.end(), int64_t{1}, std::multiplies<>());
    port.nbytes = static_cast<size_t>(count) * (port.dtype.bits / 8);
  }
  return ports;
}

std::byte* DataOf(const ffi::AnyView& tensor) { return static_cast<std::byte*>(tensor.cast<DLTensor*>()->data); }

// Where the inputs come from. Every inference gets the same ones, written straight into the arena.
class Inputs {
 public:
  // Opens the files and checks what they hold.
  Inputs(std::vector<Port> ports, const Arguments& arguments) : ports_(std::move(ports)), seed_(arguments.seed) {
    for (const auto& [name, path] : arguments.inputs) {
      const auto is_called = [&name = name](const Port& port) { return port.name == name; };
      const auto port = std::find_if(ports_.begin(), ports_.end(), is_called);
      if (port == ports_.end()) throw UsageError("the model has no input called " + name);
      try {
        files_.emplace(name, NpyFile(path, port->dtype, port->shape));
      } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
      }
    }
  }

  void Fill(ffi::PackedArgs places) const {
    std::mt19937_64 random(seed_);
    for (size_t i = 0; i < ports_.size(); ++i) {
      const Port& port = ports_[i];
      std::byte* data = DataOf(places[static_cast<int>(i)]);
      if (const auto file = files_.find(port.name); file != files_.end())
        file->second.Read(data, port.nbytes);
      else if (port.dtype.code == kDLFloat && port.dtype.bits == 32)
        FillNormal<float>(data, port.nbytes, random);
      else if (port.dtype.code == kDLFloat && port.dtype.bits == 64)
        FillNormal<double>(data, port.nbytes, random);
      else
        std::memset(data, 0, port.nbytes);
    }
  }

 private:
  template <typename T>
  static void FillNormal(std::byte* data, size_t nbytes, std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    auto* out = reinterpret_cast<T*>(data);
    for (size_t i = 0; i < nbytes / sizeof(T); ++i) out[i] = static_cast<T>(normal(random));
  }

  std::vector<Port> ports_;
  uint64_t seed_;
  std::map<std::string, NpyFile> files_;
};

// Where the outputs go: nowhere without --output-dir.
class Outputs {
 public:
  // Creates the folder. Throws if two outputs would share a file.
  Outputs(std::vector<Port> ports, const std::string& folder) : ports_(std::move(ports)) {
    if (folder.empty()) return;
    for (const Port& port : ports_) {
      std::string name = port.name;
      std::replace(name.begin(), name.end(), '/', '_');
      std::string file = folder + "/" + name + ".npy";
      if (std::find(files_.begin(), files_.end(), file) != files_.end())
        throw std::runtime_error("two outputs would be written to " + file);
      files_.push_back(std::move(file));
    }
    std::filesystem::create_directories(folder);
  }

  void Write(ffi::PackedArgs places) const {
    for (size_t i = 0; i < files_.size(); ++i)
      WriteNpy(files_[i], ports_[i].dtype, ports_[i].shape, DataOf(places[static_cast<int>(i)]), ports_[i].nbytes);
  }

 private:
  std::vector<Port> ports_;
  std::vector<std::string> files_;
};

// The functions of an open session.
class Model {
 public:
  explicit Model(const Arguments& arguments) {
    // dlopen searches its path for names without a slash.
    const std::unique_ptr<char, decltype(&std::free)> path(::realpath(arguments.model.c_str(), nullptr), &std::free);
    if (!path) throw std::runtime_error("cannot open " + arguments.model + ": " + std::strerror(errno));
    // The ending names the loader.
    if (!std::string_view(path.get()).ends_with(".so")) throw std::runtime_error(arguments.model + " is not a shared library (.so)");
    const ffi::Module program = ffi::Module::LoadFromFile(path.get());
    if (!std::string_view(program->kind()).starts_with("flexcomp.program."))
      throw std::runtime_error(arguments.model + " is not a compiled network");
    info = json::Parse(Get(program, "info")().cast<ffi::String>()).cast<json::Object>();

    std::string weights = arguments.weights;
    if (weights.empty()) {
      weights = path.get();
      if (weights.ends_with(".so")) weights.resize(weights.size() - 3);
      weights += ".weights";
    }
    json::Object options;
    options.Set("library_path", ffi::String(path.get()));
    options.Set("budget_bytes", static_cast<int64_t>(ResolveBudget(arguments.budget, Bytes(info, "min_budget_bytes"),
                                                                   Bytes(info, "resident_bytes"))));
    options.Set("threads", int64_t{arguments.threads});
    if (!arguments.compute_cpus.empty()) options.Set("compute_cpus", ffi::String(arguments.compute_cpus));
    if (!arguments.loader_cpu.empty()) options.Set("loader_cpu", ffi::String(arguments.loader_cpu));
    options.Set("affinity", !arguments.no_affinity);
    options.Set("verify", arguments.verify);
    options.Set("direct", !arguments.buffered);
    options.Set("read_bandwidth", arguments.read_bandwidth);
    if (!arguments.trace.empty()) options.Set("trace", true);
    session_ = Get(program, "open")(ffi::String(weights), json::Stringify(options)).cast<ffi::Module>();
    run_ = Get(*session_, "run_in_place");
    stats_ = Get(*session_, "stats");
    set_budget_ = Get(*session_, "set_budget");
    if (!arguments.trace.empty()) trace_ = Get(*session_, "trace");
  }

  static uint64_t Bytes(const json::Object& object, const char* key) {
    return static_cast<uint64_t>(object[key].cast<int64_t>());
  }

  // `look` sees the outputs in the arena.
  using Look = std::function<void(ffi::PackedArgs)>;
  void Run(const Inputs& inputs, const Look& look) const {
    const auto fill = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) { inputs.Fill(places); });
    ffi::Optional<ffi::Function> drain;
    if (look) drain = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) { look(places); });
    (*run_)(fill, drain);
  }
  void Run(const Inputs& inputs, const Outputs* outputs) const {
    Run(inputs, outputs ? Look([outputs](ffi::PackedArgs places) { outputs->Write(places); }) : Look());
  }
  json::Object Stats() const { return json::Parse((*stats_)().cast<ffi::String>()).cast<json::Object>(); }
  std::string Trace() const { return (*trace_)().cast<ffi::String>(); }
  void SetBudget(int64_t budget) const { (*set_budget_)(budget); }

  json::Object info;

 private:
  static ffi::Function Get(const ffi::Module& module, const char* name) {
    auto function = module->GetFunction(name);
    if (!function.has_value())
      throw std::runtime_error(std::string("the library was built by another version of flexcomp, whose runtime has no \"") +
                               name + "\": build it again");
    return *std::move(function);
  }

  std::optional<ffi::Module> session_;
  std::optional<ffi::Function> run_, stats_, set_budget_, trace_;
};

// The file of --trace. It is written as the inferences end, so that it takes no memory.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w"), &std::fclose) {
    if (!file_) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  }
  void Append(const std::string& line) {
    if (std::fprintf(file_.get(), "%s\n", line.c_str()) < 0 || std::fflush(file_.get()) != 0)
      throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
  }

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

json::Array SwitchBudgets(const Model& model, const Inputs& inputs, const Outputs& outputs, const Arguments& arguments) {
  const auto ladder = model.info["ladder"].cast<json::Array>();
  std::mt19937_64 random(arguments.seed);
  json::Array switches;
  for (int i = 0; i < arguments.switch_budgets; ++i) {
    const auto rung = ladder[static_cast<int64_t>(random() % ladder.size())].cast<json::Object>();
    const auto start = std::chrono::steady_clock::now();
    model.SetBudget(rung["budget_bytes"].cast<int64_t>());
    const double switch_ms = MillisecondsSince(start);
    model.Run(inputs, i + 1 == arguments.switch_budgets ? &outputs : nullptr);
    json::Object done;
    done.Set("budget_bytes", rung["budget_bytes"]);
    done.Set("arena_bytes", rung["arena_bytes"]);
    done.Set("switch_ms", switch_ms);
    done.Set("latency_ms", model.Stats()["latency_ms"]);
    done.Set("rss_bytes", static_cast<int64_t>(RssBytes()));
    switches.push_back(done);
  }
  return switches;
}

// What every inference on the same inputs should give, up to the rounding of other kernels.
class Expected {
 public:
  explicit Expected(const std::vector<Port>& ports) : ports_(ports) {}

  void Remember(ffi::PackedArgs places) {
    for (size_t i = 0; i < ports_.size(); ++i) {
      const std::byte* data = DataOf(places[static_cast<int>(i)]);
      values_.emplace_back(data, data + ports_[i].nbytes);
    }
  }
  bool Agrees(ffi::PackedArgs places) const {
    for (size_t i = 0; i < ports_.size(); ++i)
      if (!Agree(ports_[i], values_[i].data(), DataOf(places[static_cast<int>(i)]))) return false;
    return true;
  }

 private:
  static constexpr float kTolerance = 1e-4f;  // of the largest output, as between two implementations

  static bool Agree(const Port& port, const std::byte* expected, const std::byte* given) {
    if (port.dtype.code != kDLFloat || port.dtype.bits != 32) return std::memcmp(expected, given, port.nbytes) == 0;
    const auto* a = reinterpret_cast<const float*>(expected);
    const auto* b = reinterpret_cast<const float*>(given);
    float largest = 0;
    for (size_t i = 0; i < port.nbytes / sizeof(float); ++i) largest = std::max(largest, std::abs(a[i]));
    for (size_t i = 0; i < port.nbytes / sizeof(float); ++i)
      if (!(std::abs(a[i] - b[i]) <= kTolerance * largest)) return false;
    return true;
  }

  std::vector<Port> ports_;
  std::vector<std::vector<std::byte>> values_;
};

// Adds "switches" and "concurrent" to the report.
void SwitchWhileRunning(const Model& model, const Inputs& inputs, const Arguments& arguments, double pause_ms,
                        json::Object& report) {
  const auto ladder = model.info["ladder"].cast<json::Array>();
  Expected expected(ParsePorts(model.info["outputs"].cast<json::Array>()));
  model.Run(inputs, [&](ffi::PackedArgs places) { expected.Remember(places); });
  SwitchTest test;
  for (const ffi::Any& rung : ladder) test.budgets.push_back(rung.cast<json::Object>()["budget_bytes"].cast<int64_t>());
  test.switches = arguments.switch_budgets;
  test.callers = arguments.callers;
  test.seed = arguments.seed;
  test.pause_ms = pause_ms;
  test.set_budget = [&](int64_t budget) { model.SetBudget(budget); };
  test.run = [&] {
    bool right = false;
    model.Run(inputs, [&](ffi::PackedArgs places) { right = expected.Agrees(places); });
    return right;
  };
  const SwitchReport done = SwitchWhileRunning(test);
  json::Array switches;
  for (const Switch& one : done.switches) {
    const auto rung = ladder[static_cast<int64_t>(one.budget)].cast<json::Object>();
    json::Object object;
    object.Set("budget_bytes", rung["budget_bytes"]);
    object.Set("arena_bytes", rung["arena_bytes"]);
    object.Set("switch_ms", one.milliseconds);
    object.Set("rss_bytes", static_cast<int64_t>(one.rss));
    switches.push_back(object);
  }
  json::Object concurrent;
  concurrent.Set("runs", static_cast<int64_t>(done.runs));
  concurrent.Set("wrong", static_cast<int64_t>(done.wrong));
  concurrent.Set("restarts", model.Stats()["restarts"]);
  report.Set("switches", switches);
  report.Set("concurrent", concurrent);
}

void Main(const Arguments& arguments) {
  const Model model(arguments);
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();

  const Inputs inputs(ParsePorts(model.info["inputs"].cast<json::Array>()), arguments);
  const Outputs outputs(ParsePorts(model.info["outputs"].cast<json::Array>()), arguments.output_dir);

  std::optional<TraceFile> trace;
  if (!arguments.trace.empty()) trace.emplace(arguments.trace);

  json::Array warmup_ms, latency_ms, stall_ms, bytes_read;
  std::vector<double> latencies;
  json::Object stats;
  for (int i = -arguments.warmup; i < arguments.repeat; ++i) {
    const bool last = i + 1 == arguments.repeat && arguments.switch_budgets == 0;
    model.Run(inputs, last ? &outputs : nullptr);
    stats = model.Stats();
    if (i < 0) {
      warmup_ms.push_back(stats["latency_ms"]);
      continue;
    }
    if (trace) trace->Append(model.Trace());
    latencies.push_back(stats["latency_ms"].cast<double>());
    latency_ms.push_back(stats["latency_ms"]);
    stall_ms.push_back(stats["stall_ms"]);
    bytes_read.push_back(stats["bytes_read"]);
  }
  const uint64_t peak_rss = PeakRssBytes();

  json::Object report;
  report.Set("latency_ms", latency_ms);
  report.Set("median_ms", Median(latencies));
  report.Set("warmup_ms", warmup_ms);
  report.Set("stall_ms", stall_ms);
  report.Set("bytes_read", bytes_read);
  for (const char* key : {"budget_bytes", "arena_bytes", "rung", "threads", "compute_cpus", "loader_cpus", "direct_io"})
    report.Set(key, stats[key]);
  report.Set("idle_rss_bytes", static_cast<int64_t>(idle_rss));
  report.Set("peak_rss_bytes", static_cast<int64_t>(peak_rss));
  if (arguments.callers > 0)
    SwitchWhileRunning(model, inputs, arguments, 1.5 * Median(latencies), report);
  else if (arguments.switch_budgets > 0)
    report.Set("switches", SwitchBudgets(model, inputs, outputs, arguments));
  std::printf("%s\n", json::Stringify(report).c_str());
}

// One line on stderr, whatever the message.
int Fail(std::string message, int code) {
  if (const size_t end = message.find('\n'); end != std::string::npos) message.resize(end);
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

}  // namespace
}  // namespace flexcomp::runner

int main(int argc, char** argv) {
  using namespace flexcomp::runner;
  try {
    const Arguments arguments = ParseArguments(argc, argv);
    if (arguments.help) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    Main(arguments);
    return 0;
  } catch (const UsageError& error) {
    return Fail(error.what(), kUsageError);
  } catch (const tvm::ffi::Error& error) {
    return Fail(error.message(), error.kind() == "InputError" ? kUsageError : kCannotRun);
  } catch (const std::exception& error) {
    return Fail(error.what(), kCannotRun);
  }
}

// flexcomp-run: runs an exported model in a process whose memory is the model's.
//
// Prints one JSON object:
//   latency_ms, stall_ms, bytes_read   lists, one entry for each timed inference; stall_ms is the time in which
//                                      kernels waited for weights
//   warmup_ms                          list, the inferences before them; the first loads the pinned weights
//   median_ms                          of latency_ms
//   idle_rss_bytes                     resident memory with the model open and its arena not yet touched
//   peak_rss_bytes                     the most after that, the runner's own input and output buffers included
//   budget_bytes, arena_bytes, rung, threads, direct_io
//   switches                           with --switch-budgets: [{budget_bytes, arena_bytes, switch_ms, latency_ms,
//                                      rss_bytes}], the memory taken after the inference
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
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "arguments.h"
#include "npy.h"
#include "process_memory.h"

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr int kUsageError = 2;
constexpr int kCannotRun = 4;

// A tensor of the model's interface with memory of its own.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  DLDataType dtype;
  std::vector<std::byte> data;
  DLTensor view;
};

DLDataType ParseDtype(const std::string& name) {
  const std::pair<const char*, uint8_t> kinds[] = {
      {"uint", kDLUInt}, {"int", kDLInt}, {"bfloat", kDLBfloat}, {"float", kDLFloat}};
  if (name == "bool") return {kDLBool, 8, 1};
  for (const auto& [kind, code] : kinds)
    if (name.starts_with(kind)) return {code, static_cast<uint8_t>(std::atoi(name.c_str() + std::strlen(kind))), 1};
  throw std::runtime_error("the model has tensors of an unknown type: " + name);
}

std::vector<Tensor> MakeTensors(const json::Array& ports) {
  std::vector<Tensor> tensors;
  tensors.reserve(ports.size());  // views point into the elements
  for (const ffi::Any& any : ports) {
    const auto port = any.cast<json::Object>();
    Tensor& tensor = tensors.emplace_back();
    tensor.name = port["name"].cast<std::string>();
    tensor.dtype = ParseDtype(port["dtype"].cast<std::string>());
    for (const ffi::Any& extent : port["shape"].cast<json::Array>()) tensor.shape.push_back(extent.cast<int64_t>());
    const int64_t count = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    tensor.data.resize(static_cast<size_t>(count) * (tensor.dtype.bits / 8));
    tensor.view = {tensor.data.data(), {kDLCPU, 0}, static_cast<int32_t>(tensor.shape.size()), tensor.dtype,
                   tensor.shape.data(), nullptr, 0};
  }
  return tensors;
}

template <typename T>
void FillNormal(Tensor& tensor, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  auto* out = reinterpret_cast<T*>(tensor.data.data());
  for (size_t i = 0; i < tensor.data.size() / sizeof(T); ++i) out[i] = static_cast<T>(normal(random));
}

void FillInputs(std::vector<Tensor>& inputs, const Arguments& arguments) {
  for (const auto& [name, path] : arguments.inputs)
    if (std::none_of(inputs.begin(), inputs.end(), [&](const Tensor& tensor) { return tensor.name == name; }))
      throw UsageError("the model has no input called " + name);
  std::mt19937_64 random(arguments.seed);
  for (Tensor& tensor : inputs) {
    if (const auto file = arguments.inputs.find(tensor.name); file != arguments.inputs.end())
      ReadNpy(file->second, tensor.dtype, tensor.shape, tensor.data.data(), tensor.data.size());
    else if (tensor.dtype.code == kDLFloat && tensor.dtype.bits == 32)
      FillNormal<float>(tensor, random);
    else if (tensor.dtype.code == kDLFloat && tensor.dtype.bits == 64)
      FillNormal<double>(tensor, random);
  }
}

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
    options.Set("verify", arguments.verify);
    options.Set("direct", !arguments.buffered);
    options.Set("read_bandwidth", arguments.read_bandwidth);
    session_ = Get(program, "open")(ffi::String(weights), json::Stringify(options)).cast<ffi::Module>();
    run_ = Get(*session_, "run");
    stats_ = Get(*session_, "stats");
    set_budget_ = Get(*session_, "set_budget");
  }

  static uint64_t Bytes(const json::Object& object, const char* key) {
    return static_cast<uint64_t>(object[key].cast<int64_t>());
  }

  void Run(std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) const {
    std::vector<ffi::AnyView> args;
    for (auto* tensors : {&inputs, &outputs})
      for (Tensor& tensor : *tensors) args.emplace_back(&tensor.view);
    ffi::Any nothing;
    run_->CallPacked(args.data(), static_cast<int32_t>(args.size()), &nothing);
  }
  json::Object Stats() const { return json::Parse((*stats_)().cast<ffi::String>()).cast<json::Object>(); }
  void SetBudget(int64_t budget) const { (*set_budget_)(budget); }

  json::Object info;

 private:
  static ffi::Function Get(const ffi::Module& module, const char* name) { return module->GetFunction(name).value(); }

  std::optional<ffi::Module> session_;
  std::optional<ffi::Function> run_, stats_, set_budget_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

json::Array SwitchBudgets(const Model& model, std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                          const Arguments& arguments) {
  const auto ladder = model.info["ladder"].cast<json::Array>();
  std::mt19937_64 random(arguments.seed);
  json::Array switches;
  for (int i = 0; i < arguments.switch_budgets; ++i) {
    const auto rung = ladder[static_cast<int64_t>(random() % ladder.size())].cast<json::Object>();
    const auto start = std::chrono::steady_clock::now();
    model.SetBudget(rung["budget_bytes"].cast<int64_t>());
    const double switch_ms = MillisecondsSince(start);
    model.Run(inputs, outputs);
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

// The file of each output. Throws if two would share one.
std::vector<std::string> OutputFiles(const std::vector<Tensor>& outputs, const std::string& folder) {
  std::vector<std::string> files;
  for (const Tensor& tensor : outputs) {
    std::string name = tensor.name;
    std::replace(name.begin(), name.end(), '/', '_');
    std::string file = folder + "/" + name + ".npy";
    if (std::find(files.begin(), files.end(), file) != files.end())
      throw std::runtime_error("two outputs would be written to " + file);
    files.push_back(std::move(file));
  }
  return files;
}

void Main(const Arguments& arguments) {
  const Model model(arguments);
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();

  std::vector<Tensor> inputs = MakeTensors(model.info["inputs"].cast<json::Array>());
  std::vector<Tensor> outputs = MakeTensors(model.info["outputs"].cast<json::Array>());
  FillInputs(inputs, arguments);
  std::vector<std::string> files;
  if (!arguments.output_dir.empty()) {
    files = OutputFiles(outputs, arguments.output_dir);
    std::filesystem::create_directories(arguments.output_dir);
  }

  json::Array warmup_ms, latency_ms, stall_ms, bytes_read;
  std::vector<double> latencies;
  json::Object stats;
  for (int i = -arguments.warmup; i < arguments.repeat; ++i) {
    model.Run(inputs, outputs);
    stats = model.Stats();
    if (i < 0) {
      warmup_ms.push_back(stats["latency_ms"]);
      continue;
    }
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
  for (const char* key : {"budget_bytes", "arena_bytes", "rung", "threads", "direct_io"}) report.Set(key, stats[key]);
  report.Set("idle_rss_bytes", static_cast<int64_t>(idle_rss));
  report.Set("peak_rss_bytes", static_cast<int64_t>(peak_rss));
  if (arguments.switch_budgets > 0) report.Set("switches", SwitchBudgets(model, inputs, outputs, arguments));
  for (size_t i = 0; i < files.size(); ++i) {
    const Tensor& tensor = outputs[i];
    WriteNpy(files[i], tensor.dtype, tensor.shape, tensor.data.data(), tensor.data.size());
  }
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
    return Fail(error.message(), kCannotRun);
  } catch (const std::exception& error) {
    return Fail(error.what(), kCannotRun);
  }
}

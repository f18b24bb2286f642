#include "pool_run.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "inputs.h"
#include "library.h"
#include "outputs.h"
#include "pool/pool.h"
#include "process_memory.h"
#include "process_start.h"
#include "storage/trace.h"

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;
using Clock = std::chrono::steady_clock;

struct Allocator {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::aligned_alloc(64, (ffi::GetDataSize(*tensor) + 63) / 64 * 64);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

std::vector<ffi::Any> TensorsOf(const std::vector<Port>& ports) {
  std::vector<ffi::Any> tensors;
  for (const Port& port : ports)
    tensors.emplace_back(ffi::Tensor::FromNDAlloc(Allocator(), ffi::Shape(port.shape.begin(), port.shape.end()), port.dtype, DLDevice{kDLCPU, 0}));
  return tensors;
}

// Calls a function of tensors' places, as a session would.
template <typename Function>
void WithPlaces(const std::vector<ffi::Any>& tensors, const Function& function) {
  std::vector<DLTensor> places;
  std::vector<ffi::AnyView> views;
  for (const ffi::Any& tensor : tensors) places.push_back(*tensor.cast<DLTensor*>());
  for (DLTensor& place : places) views.emplace_back(&place);
  function(ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())));
}

// One that makes requests, one after the other.
class Client {
 public:
  Client(Pool& pool, const Arguments& arguments, const std::string& path) : pool_(pool), arguments_(arguments) {
    const Library library = OpenLibrary(path);
    name_ = std::filesystem::path(path).stem().string();
    ModelOptions options;
    options.urgency = NumberOf(arguments.urgency).value_or(1);
    options.rate = NumberOf(arguments.rate);
    if (const auto deadline = NumberOf(arguments.deadline_ms)) options.deadline_s = *deadline * 1e-3;
    const json::Object info = InShape(library.info, 0);
    const auto ports = [&](const char* key) { return ParsePorts(info[key].cast<json::Array>()); };
    number_ = pool.Add(name_, options, library.program, library.path, library.weights, SessionOptions(arguments));
    const Inputs inputs(ports("inputs"), {}, arguments.seed);
    inputs_ = TensorsOf(ports("inputs"));
    outputs_ = TensorsOf(ports("outputs"));
    WithPlaces(inputs_, [&](ffi::PackedArgs places) { inputs.Fill(places); });
    written_.emplace(ports("outputs"), arguments.output_dir.empty() ? "" : arguments.output_dir + "/" + name_);
  }

  void Run() try {
    const auto rate = NumberOf(arguments_.rate);
    const auto begin = Clock::now();
    for (int i = -arguments_.warmup; i < arguments_.repeat; ++i) {
      if (rate) std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>((i + arguments_.warmup) / *rate)));
      Ask(i >= 0);
    }
    WithPlaces(outputs_, [&](ffi::PackedArgs places) { written_->Write(places); });
  } catch (...) {
    error_ = std::current_exception();
  }

  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }
  const std::string& name() const { return name_; }
  json::Object Report() const {
    json::Object report;
    report.Set("wait_ms", wait_ms_);
    report.Set("latency_ms", latency_ms_);
    std::vector<double> whole = whole_;
    std::sort(whole.begin(), whole.end());
    const size_t half = whole.size() / 2;
    report.Set("median_ms", whole.empty()       ? json::Value(nullptr)
                            : whole.size() % 2 ? json::Value(whole[half])
                                               : json::Value((whole[half - 1] + whole[half]) / 2));
    report.Set("refused", refused_);
    return report;
  }

 private:
  std::optional<double> NumberOf(const std::map<std::string, double>& numbers) const {
    const auto found = numbers.find(name_);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  }

  void Ask(bool timed) {
    std::vector<ffi::Any> tensors = inputs_;
    tensors.insert(tensors.end(), outputs_.begin(), outputs_.end());
    const std::optional<Answer> answer = pool_.Run(number_, {}, std::move(tensors));
    if (!timed) return;
    if (!answer || answer->refusal) {
      ++refused_;
      return;
    }
    const Completion& done = answer->completion;
    wait_ms_.push_back(done.wait_s * 1e3);
    latency_ms_.push_back(done.run_s * 1e3);
    whole_.push_back((done.wait_s + done.run_s) * 1e3);
  }

  Pool& pool_;
  const Arguments& arguments_;
  std::string name_;
  uint32_t number_ = 0;
  std::vector<ffi::Any> inputs_, outputs_;
  std::optional<Outputs> written_;
  json::Array wait_ms_, latency_ms_;
  std::vector<double> whole_;
  int64_t refused_ = 0;
  std::exception_ptr error_;
};

void RequireKnown(const char* option, const std::map<std::string, double>& numbers, const std::vector<std::unique_ptr<Client>>& clients) {
  for (const auto& [name, number] : numbers)
    if (std::ranges::none_of(clients, [&known = name](const auto& client) { return client->name() == known; }))
      throw UsageError(std::string(option) + ": there is no model " + name);
}

}  // namespace

json::Object RunPool(const Arguments& arguments, int64_t started) {
  PoolOptions options;
  options.budget = *arguments.budget.nbytes;
  options.lanes = static_cast<uint32_t>(arguments.lanes);
  options.threads = arguments.threads;
  Pool pool(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::string& path : arguments.pool) clients.push_back(std::make_unique<Client>(pool, arguments, path));
  RequireKnown("--urgency", arguments.urgency, clients);
  RequireKnown("--rate", arguments.rate, clients);
  RequireKnown("--deadline-ms", arguments.deadline_ms, clients);

  const double start_ms = static_cast<double>(MonotonicNs() - started) * 1e-6;
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();
  {
    std::vector<std::jthread> threads;  // joined at the end of this block
    for (const auto& client : clients) threads.emplace_back([&client] { client->Run(); });
  }
  const uint64_t peak_rss = PeakRssBytes();
  for (const auto& client : clients) client->RethrowError();

  json::Object report, models;
  const auto stats = pool.Stats()["models"].cast<json::Object>();
  for (const auto& client : clients) {
    json::Object one = client->Report();
    one.Set("stats", stats[client->name()]);
    models.Set(client->name(), one);
  }
  report.Set("start_ms", start_ms);
  report.Set("idle_rss_bytes", static_cast<int64_t>(idle_rss));
  report.Set("peak_rss_bytes", static_cast<int64_t>(peak_rss));
  report.Set("plan", pool.Plan());
  report.Set("models", models);
  return report;
}

}  // namespace flexcomp::runner

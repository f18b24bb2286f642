#include "pool_run.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "calls.h"
#include "inputs.h"
#include "model.h"
#include "outputs.h"
#include "process_memory.h"
#include "process_start.h"

namespace flexcomp::runner {
namespace {

using Clock = std::chrono::steady_clock;

// One that makes requests, one after the other.
class Client {
 public:
  Client(flexcomp_pool* pool, const Arguments& arguments, const std::string& path)
      : arguments_(arguments), name_(std::filesystem::path(path).stem().string()), member_(Added(pool, path)) {
    inputs_.emplace(input_ports_ = PortsOf(member_.get(), FLEXCOMP_INPUT, 0));
    outputs_.emplace(output_ports_ = PortsOf(member_.get(), FLEXCOMP_OUTPUT, 0));
    Inputs(input_ports_, {}, arguments.seed).Fill(inputs_->places());
    written_.emplace(output_ports_, arguments.output_dir.empty() ? "" : arguments.output_dir + "/" + name_);
  }

  void Run() try {
    const auto rate = NumberOf(arguments_.rate);
    const auto begin = Clock::now();
    for (int i = -arguments_.warmup; i < arguments_.repeat; ++i) {
      if (rate) std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>((i + arguments_.warmup) / *rate)));
      Ask(i >= 0);
    }
    written_->Write(outputs_->places());
  } catch (...) {
    error_ = std::current_exception();
  }

  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }
  const std::string& name() const { return name_; }
  Json Report() const {
    Json report = Json::Object();
    report.Set("wait_ms", wait_ms_);
    report.Set("latency_ms", latency_ms_);
    std::vector<double> whole = whole_;
    std::sort(whole.begin(), whole.end());
    const size_t half = whole.size() / 2;
    report.Set("median_ms", whole.empty() ? Json(nullptr) : Json(whole.size() % 2 ? whole[half] : (whole[half - 1] + whole[half]) / 2));
    report.Set("refused", refused_);
    report.Set("stats", Json::Parsed(Text(flexcomp_get_text, member_.get(), FLEXCOMP_TEXT_STATS)));
    return report;
  }

 private:
  std::optional<double> NumberOf(const std::map<std::string, double>& numbers) const {
    const auto found = numbers.find(name_);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  }

  SessionHandle Added(flexcomp_pool* pool, const std::string& path) const {
    const flexcomp_options session = OptionsOf(arguments_);
    flexcomp_member_options options = FLEXCOMP_MEMBER_OPTIONS_INIT;
    options.session = &session;
    options.urgency = NumberOf(arguments_.urgency).value_or(0);
    options.rate = NumberOf(arguments_.rate).value_or(0);
    options.deadline_s = NumberOf(arguments_.deadline_ms).value_or(0) * 1e-3;
    flexcomp_session* member;
    Require(flexcomp_pool_add(pool, name_.c_str(), path.c_str(), &options, &member));
    return SessionHandle(member);
  }

  void Ask(bool timed) {
    const flexcomp_status status = flexcomp_run(member_.get(), inputs_->places().data(), static_cast<uint32_t>(input_ports_.size()),
                                                outputs_->places().data(), static_cast<uint32_t>(output_ports_.size()));
    if (status != FLEXCOMP_REFUSED) Require(status);
    if (!timed) return;
    if (status == FLEXCOMP_REFUSED) {
      ++refused_;
      return;
    }
    const double wait = Got<flexcomp_member_stats>(flexcomp_member_get_stats, member_.get()).wait_s * 1e3;
    const double latency = Got<flexcomp_stats>(flexcomp_get_stats, member_.get()).latency_s * 1e3;
    wait_ms_.Append(wait);
    latency_ms_.Append(latency);
    whole_.push_back(wait + latency);
  }

  const Arguments& arguments_;
  const std::string name_;
  const SessionHandle member_;
  std::vector<Port> input_ports_, output_ports_;
  std::optional<Tensors> inputs_, outputs_;
  std::optional<Outputs> written_;
  Json wait_ms_ = Json::Array(), latency_ms_ = Json::Array();
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

Json RunPool(const Arguments& arguments, int64_t started) {
  flexcomp_pool_options options = FLEXCOMP_POOL_OPTIONS_INIT(*arguments.budget.nbytes);
  options.lanes = static_cast<uint32_t>(arguments.lanes);
  options.threads = arguments.threads;
  flexcomp_pool* opened;
  Require(flexcomp_pool_open(&options, &opened));
  const PoolHandle pool(opened);
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::string& path : arguments.pool) clients.push_back(std::make_unique<Client>(pool.get(), arguments, path));
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

  Json report = Json::Object(), models = Json::Object();
  for (const auto& client : clients) models.Set(client->name(), client->Report());
  report.Set("start_ms", start_ms);
  report.Set("idle_rss_bytes", idle_rss);
  report.Set("peak_rss_bytes", peak_rss);
  report.Set("plan", Json::Parsed(Text(flexcomp_pool_get_text, pool.get(), FLEXCOMP_TEXT_PLAN)));
  report.Set("models", models);
  return report;
}

}  // namespace flexcomp::runner

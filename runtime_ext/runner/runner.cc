// flexcomp-run: runs an exported model in a process whose memory is the model's.
//
// Prints one JSON object:
//   latency_ms, stall_ms, bytes_read   lists, one entry for each timed inference, from the inputs in the arena to
//                                      the outputs in the arena; stall_ms is the time in which kernels waited for
//                                      weights
//   read_ms, core_wait_ms              lists: how long storage was busy for that, and how long threads were ready to run
//                                      while others had the core, of all threads together; null where that is not
//                                      known
//   warmup_ms                          list, the inferences before them; the first loads the pinned weights
//   median_ms                          of latency_ms
//   start_ms, first_ms                 from the start of the process until inputs could be given, and of the first inference
//   warm_ms                            with --start warm: within start_ms, to load the kept bytes
//   prepared_bytes, prepare_ms,        lists: weights in the kernels' form, made of the bytes read; how long the loader took
//   help_ms                            for that, and how long waiting kernels helped, within their stall_ms;
//                                      null where the library does not know
//   idle_rss_bytes                     resident memory with the model open and its arena not yet touched
//   peak_rss_bytes                     the most after that; inputs and outputs have no memory but the arena's
//   asked_bytes                        the budget that was given
//   budget_bytes, next_budget_bytes    needs of the plan in use and the next larger one (null: there is none)
//   notes                              list of sentences that the user should read
//   arena_bytes, rung, threads, compute_cpus, loader_cpus (null: on any core), direct_io
//   switches                           with --switch-budgets: [{budget_bytes, arena_bytes, switch_ms, latency_ms,
//                                      rss_bytes}], the memory taken after the inference. With --callers the
//                                      memory is taken right after the switch, there is no latency_ms, and there is
//                                      also "concurrent": {runs, wrong, restarts}
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "core_wait.h"
#include "generate.h"
#include "inputs.h"
#include "model.h"
#include "outputs.h"
#include "pool_run.h"
#include "process_memory.h"
#include "process_start.h"
#include "report.h"
#include "switch_report.h"
#include "trace_file.h"

namespace flexcomp::runner {
namespace {

namespace json = tvm::ffi::json;

constexpr int kUsageError = 2;
constexpr int kCannotRun = 4;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

json::Object Run(const Arguments& arguments, int64_t started) {
  const Model model(arguments);
  CoreWaitNs();  // finds its memory before memory is measured
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();

  const Inputs inputs(model.InputPorts(), arguments.inputs, arguments.seed);
  const Outputs outputs(model.OutputPorts(), arguments.output_dir);
  const auto write_outputs = [&](tvm::ffi::PackedArgs places) { outputs.Write(places); };

  std::optional<TraceFile> trace;
  if (!arguments.trace.empty()) trace.emplace(arguments.trace);

  json::Array warmup_ms, latency_ms, core_wait_ms;
  std::map<const char*, json::Array> each;
  for (const char* key : {"stall_ms", "read_ms", "bytes_read", "prepared_bytes", "prepare_ms", "help_ms"}) each[key];
  std::optional<json::Value> first_ms;
  std::optional<double> warm_ms;
  if (arguments.warm) warm_ms = model.Warm();
  const double start_ms = static_cast<double>(MonotonicNs() - started) * 1e-6;
  std::vector<double> latencies;
  json::Object stats;
  for (int i = -arguments.warmup; i < arguments.repeat; ++i) {
    const bool last = i + 1 == arguments.repeat && arguments.switch_budgets == 0;
    const std::optional<int64_t> waited = CoreWaitNs();
    model.Run(inputs, last ? Model::Look(write_outputs) : Model::Look());
    const std::optional<int64_t> waited_after = CoreWaitNs();
    stats = model.Stats();
    if (!first_ms) first_ms = stats["latency_ms"];
    if (i < 0) {
      warmup_ms.push_back(stats["latency_ms"]);
      continue;
    }
    if (trace) trace->Append(model.Trace());
    latencies.push_back(stats["latency_ms"].cast<double>());
    latency_ms.push_back(stats["latency_ms"]);
    // Libraries of earlier versions do not say everything.
    for (auto& [key, values] : each) values.push_back(stats.count(key) > 0 ? stats[key] : nullptr);
    if (waited && waited_after)
      core_wait_ms.push_back(static_cast<double>(*waited_after - *waited) * 1e-6);
    else
      core_wait_ms.push_back(nullptr);
  }
  const uint64_t peak_rss = PeakRssBytes();

  json::Object report;
  report.Set("latency_ms", latency_ms);
  report.Set("median_ms", Median(latencies));
  report.Set("warmup_ms", warmup_ms);
  report.Set("start_ms", start_ms);
  report.Set("first_ms", *first_ms);
  if (warm_ms) report.Set("warm_ms", *warm_ms);
  report.Set("core_wait_ms", core_wait_ms);
  for (const auto& [key, values] : each) report.Set(key, values);
  AddModel(report, model, stats, arguments, idle_rss, peak_rss);
  if (arguments.callers > 0)
    SwitchDuringRuns(model, inputs, arguments, 1.5 * Median(latencies), report);
  else if (arguments.switch_budgets > 0)
    SwitchBetweenRuns(model, inputs, outputs, arguments, report);
  return report;
}

void Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    throw std::runtime_error(std::string("cannot print the report: ") + std::strerror(errno));
}

// A message may hold names from a library, which a terminal must not obey: control characters are escapes.
std::string Printable(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool wide = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009F
    if (byte >= 0x20 && byte != 0x7f && !wide) {
      result += text[i];
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\x%02x", wide ? next : byte);
    result += escape;
    i += wide;
  }
  return result;
}

// One line on stderr, whatever the message.
int Fail(std::string message, int code) {
  if (const size_t end = message.find('\n'); end != std::string::npos) message.resize(end);
  std::fprintf(stderr, "error: %s\n", Printable(message).c_str());
  return code;
}

}  // namespace
}  // namespace flexcomp::runner

int main(int argc, char** argv) {
  using namespace flexcomp::runner;
  const int64_t started = ProcessStartNs();
  try {
    const Arguments arguments = ParseArguments(argc, argv);
    if (arguments.help) {
      Print(kUsage);
      return 0;
    }
    if (arguments.started > MonotonicNs()) throw UsageError("--started takes a time before the process ran");
    const int64_t since = arguments.started > 0 ? arguments.started : started;
    const auto report = !arguments.pool.empty()       ? RunPool(arguments, since)
                        : !arguments.generate.empty() ? Generate(arguments, since)
                                                      : Run(arguments, since);
    Print(std::string(tvm::ffi::json::Stringify(report)) + "\n");
    return 0;
  } catch (const UsageError& error) {
    return Fail(error.what(), kUsageError);
  } catch (const tvm::ffi::Error& error) {
    return Fail(error.message(), error.kind() == "InputError" ? kUsageError : kCannotRun);
  } catch (const std::bad_alloc&) {
    return Fail("the process is out of memory", kCannotRun);
  } catch (const std::exception& error) {
    return Fail(error.what(), kCannotRun);
  }
}

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
//   help_ms                            for that, and how long waiting kernels helped, within their stall_ms
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
#include "json.h"
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

constexpr int kUsageError = 2;
constexpr int kCannotRun = 4;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Json Run(const Arguments& arguments, int64_t started) {
  const Model model(arguments);
  CoreWaitNs();  // finds its memory before memory is measured
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();

  const Inputs inputs(model.InputPorts(), arguments.inputs, arguments.seed);
  const Outputs outputs(model.OutputPorts(), arguments.output_dir);
  const auto write_outputs = [&](Places places) { outputs.Write(places); };

  std::optional<TraceFile> trace;
  if (!arguments.trace.empty()) trace.emplace(arguments.trace);

  Json warmup_ms = Json::Array(), latency_ms = Json::Array(), core_wait_ms = Json::Array();
  std::map<const char*, Json> each;
  const auto note = [&each](const char* key, const Json& value) { each.try_emplace(key, Json::Array()).first->second.Append(value); };
  std::optional<double> first_ms, warm_ms;
  if (arguments.warm) {
    const int64_t begin = MonotonicNs();
    Require(flexcomp_warm(model.session()));
    warm_ms = static_cast<double>(MonotonicNs() - begin) * 1e-6;
  }
  const double start_ms = static_cast<double>(MonotonicNs() - started) * 1e-6;
  std::vector<double> latencies;
  for (int i = -arguments.warmup; i < arguments.repeat; ++i) {
    const bool last = i + 1 == arguments.repeat && arguments.switch_budgets == 0;
    const std::optional<int64_t> waited = CoreWaitNs();
    model.Run(inputs, last ? Model::Look(write_outputs) : Model::Look());
    const std::optional<int64_t> waited_after = CoreWaitNs();
    const flexcomp_stats stats = model.Stats();
    const double latency = stats.latency_s * 1e3;
    if (!first_ms) first_ms = latency;
    if (i < 0) {
      warmup_ms.Append(latency);
      continue;
    }
    if (trace) trace->Append(Text(flexcomp_get_text, model.session(), FLEXCOMP_TEXT_TRACE));
    latencies.push_back(latency);
    latency_ms.Append(latency);
    note("stall_ms", stats.stall_s * 1e3);
    note("read_ms", stats.read_s * 1e3);
    note("bytes_read", stats.bytes_read);
    note("prepared_bytes", stats.prepared_bytes);
    note("prepare_ms", stats.prepare_s * 1e3);
    note("help_ms", stats.help_s * 1e3);
    core_wait_ms.Append(waited && waited_after ? Json(static_cast<double>(*waited_after - *waited) * 1e-6) : Json(nullptr));
  }
  const uint64_t peak_rss = PeakRssBytes();

  Json report = Json::Object();
  report.Set("latency_ms", latency_ms);
  report.Set("median_ms", Median(latencies));
  report.Set("warmup_ms", warmup_ms);
  report.Set("start_ms", start_ms);
  report.Set("first_ms", *first_ms);
  if (warm_ms) report.Set("warm_ms", *warm_ms);
  report.Set("core_wait_ms", core_wait_ms);
  for (const auto& [key, values] : each) report.Set(key, values);
  AddModel(report, model, arguments, idle_rss, peak_rss);
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
    Print(report.text() + "\n");
    return 0;
  } catch (const UsageError& error) {
    return Fail(error.what(), kUsageError);
  } catch (const CallError& error) {
    return Fail(error.what(), error.status == FLEXCOMP_ERROR_INPUT ? kUsageError : kCannotRun);
  } catch (const std::bad_alloc&) {
    return Fail("the process is out of memory", kCannotRun);
  } catch (const std::exception& error) {
    return Fail(error.what(), kCannotRun);
  }
}

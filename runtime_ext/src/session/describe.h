// Programs and sessions as JSON, for callers across the module interface.
#pragma once

#include <string>

#include "kernels/device_rates.h"
#include "program/program.h"
#include "program/shapes.h"
#include "session/session.h"
#include "storage/measure_storage.h"
#include "storage/trace.h"
#include "threads/cores.h"

namespace flexcomp {

// {"model", "target", "features", "threads", "inputs", "outputs", "min_budget_bytes", "default_budget_bytes", "resident_bytes",
//  "weights_bytes", "ladder", "layers", "metadata"}
//  Of several shapes those of the first, the largest; but extents that differ are -1, and budgets are enough for every shape. They
//  have "shapes", too: for each {"extents", "inputs", "outputs", "min_budget_bytes", "default_budget_bytes", "resident_bytes",
//  "ladder"}.
// `brief`: without "target", "features" and "layers", and of the metadata "minimum" and "pad" only: the facts for running the
// program, quickly made and read.
std::string DescribeNetwork(const Shapes& shapes, bool brief = false);

// {"keys", "bytes"}: weights that sessions may have in common, equal ones under one key; and for each rung a list of [the number
// of weights that stay whole on it, bytes that the kept range is smaller without them]. Of a plan that is damaged: none.
std::string DescribeShareable(const Program& program);
std::string DescribeResting(const Program& program);

// {"compute_cpus", "loader_cpus"}, each a list or null: wherever the system likes.
std::string DescribeCores(const CoreChoice& choice);

// {"bytes_per_s", "small_pages_bytes_per_s", "latency_s", "direct_io"}
std::string DescribeStorage(const StorageRates& rates);

// {"copy_bytes_per_s", "launch_s", "wait_s", "event_s"}
std::string DescribeRates(const DeviceRates& rates);

// {"budget_bytes", "arena_bytes", "working_bytes", "pinned_bytes", "streamed_bytes", "predicted_ms"}
std::string DescribeRung(const RungHead& rung);

// {"shape", "rung", "budget_bytes", "arena_bytes", "threads", "compute_cpus", "loader_cpus", "direct_io", "staging_bytes", "runs", "restarts",
//  "latency_ms", "stall_ms", "read_ms", "bytes_read", "reads", "prepared_bytes", "prepare_ms", "help_ms", "total_bytes_read"}
std::string DescribeState(const Shapes& shapes, const Session::State& state);

// {"rung", "begin_ns", "end_ns", "steps": [[begin, end], ...], "loads": [[begin, end], ...], "prepares": [[begin, end],
// ...]} in nanoseconds of the monotonic clock. A load with a preparation is complete at the end of the preparation;
// zeros: not needed, or nothing to prepare.
std::string DescribeTrace(const Trace& trace);

// Throws InputError for anything that is not a JSON object of known options.
SessionOptions ParseOptions(const std::string& json);

}  // namespace flexcomp

// The end of every report on one model.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <cstdint>

#include "arguments.h"
#include "model.h"

namespace flexcomp::runner {

// The plan in use, threads, notes and memory (runner.cc), and the rates that the arguments ask for. `stats` are the model's.
void AddModel(tvm::ffi::json::Object& report, const Model& model, const tvm::ffi::json::Object& stats, const Arguments& arguments,
              uint64_t idle_rss, uint64_t peak_rss);

}  // namespace flexcomp::runner

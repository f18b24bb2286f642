// The end of every report on one model.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "json.h"
#include "model.h"

namespace flexcomp::runner {

// The plan in use, threads, notes and memory (runner.cc), and the rates that the arguments ask for.
void AddModel(Json& report, const Model& model, const Arguments& arguments, uint64_t idle_rss, uint64_t peak_rss);

}  // namespace flexcomp::runner

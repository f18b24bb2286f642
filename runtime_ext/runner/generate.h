// --generate: tokens that follow tokens, for boards without Python.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "json.h"

namespace flexcomp::runner {

// Prints the likeliest next token, again and again, as each is computed: numbers with commas between them, one line. The report:
//   prompt_tokens, tokens   how many were given and computed
//   finish                  "length": as many as were asked for; "stop": a token of --stop-tokens; "capacity": the caches are full
//   start_ms                from the start of the process, at `started` nanoseconds of the monotonic clock, until tokens could be given
//   first_token_ms          after that
//   tokens_per_s            of the others; null: there are none
//   inferences, bytes_read  of all, with the first loads of weights that stay in memory
// and what runner.cc says of the plan, threads and memory. Throws UsageError, std::runtime_error.
Json Generate(const Arguments& arguments, int64_t started);

}  // namespace flexcomp::runner

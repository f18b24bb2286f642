// The runner's command line.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "budget.h"

namespace flexcomp::runner {

// The command line is wrong: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::string model;
  std::vector<std::string> pool;  // models that share the budget, instead of `model`
  int lanes = 1;
  std::map<std::string, double> urgency, rate, deadline_ms;  // by name of a model
  std::string weights;  // empty: MODEL with the ending .weights
  Budget budget;
  int threads = 0;      // 0: as many as the model was built for, within the cores for them
  std::string compute_cpus, loader_cpu;  // lists of cores; empty: the session chooses
  bool no_affinity = false;
  bool no_work_stealing = false;
  int repeat = 1;
  int warmup = 0;
  std::map<std::string, std::string> inputs;  // name → .npy file
  std::vector<int64_t> generate;  // the tokens to go on from; empty: inferences on tensors
  uint64_t tokens = std::numeric_limits<uint64_t>::max();  // at most so many more
  std::set<int64_t> stop_tokens, suppress_tokens, begin_suppress_tokens;
  std::string output_dir;                     // empty: outputs are not written
  std::string trace;                          // empty: nothing is traced
  bool warm = false;  // kept bytes are loaded before the first inference
  bool reset_state = false;  // before every inference
  bool verify = false;
  bool no_direct = false;
  double read_bandwidth = 0;
  bool device_rates = false;
  int64_t read_rate = 0;  // bytes of a request; 0: not measured
  uint64_t seed = 0;
  int64_t started = 0;  // nanoseconds of the monotonic clock, from the starting process; 0: not told
  int switch_budgets = 0;
  int callers = 0;  // threads that run inferences while budgets are switched; 0: one after each switch
  bool help = false;
};

extern const char kUsage[];

Arguments ParseArguments(int argc, char** argv);

}  // namespace flexcomp::runner

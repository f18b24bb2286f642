// calls LIBRARY BUDGET TIMES ROUNDS: one thread, rounds of inferences by the runner's own code and by the C interface in turns. Prints for
// each round both loops' microseconds per inference, of the clock and of the processor. Inputs stay as they lie, outputs are not read.
#include <flexcomp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "runner/arguments.h"
#include "runner/inputs.h"
#include "runner/model.h"

namespace {

struct Cost {
  double wall_us, cpu_us;
};

double Now(clockid_t clock) {
  timespec time;
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

template <typename Call>
Cost Measure(int times, const Call& call) {
  const double wall = Now(CLOCK_MONOTONIC), cpu = Now(CLOCK_PROCESS_CPUTIME_ID);
  for (int i = 0; i < times; ++i) call();
  return {(Now(CLOCK_MONOTONIC) - wall) / times, (Now(CLOCK_PROCESS_CPUTIME_ID) - cpu) / times};
}

void Require(flexcomp_status status) {
  if (status == FLEXCOMP_OK) return;
  std::fprintf(stderr, "error: %s\n", flexcomp_message());
  std::exit(1);
}

flexcomp_status Keep(void*, const flexcomp_tensor*, uint32_t) { return FLEXCOMP_OK; }

}  // namespace

int main(int, char** argv) {
  using namespace flexcomp::runner;
  std::string threads = "--threads=1", budget = std::string("--budget=") + argv[2];
  char* words[] = {argv[0], argv[1], threads.data(), budget.data()};
  const int times = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  const Model model(ParseArguments(4, words));
  const Inputs nothing({}, {}, 0);
  const Model::Look look = [](tvm::ffi::PackedArgs) {};

  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  options.threads = 1;
  options.budget = static_cast<uint64_t>(model.Stats()["budget_bytes"].cast<int64_t>());
  flexcomp_session* session;
  Require(flexcomp_open(argv[1], &options, &session));
  for (int round = -1; round < rounds; ++round) {  // the first one warms
    const Cost runner = Measure(times, [&] { model.Run(nothing, look); });
    const Cost interface = Measure(times, [&] { Require(flexcomp_run_in_place(session, Keep, Keep, nullptr)); });
    if (round >= 0) std::printf("%.4f %.4f %.4f %.4f\n", runner.wall_us, runner.cpu_us, interface.wall_us, interface.cpu_us);
  }
  flexcomp_stats stats = {};
  stats.size = sizeof stats;
  Require(flexcomp_get_stats(session, &stats));
  const auto runs = static_cast<uint64_t>(model.Stats()["runs"].cast<int64_t>()), wanted = static_cast<uint64_t>(times) * static_cast<uint64_t>(rounds + 1);
  Require(flexcomp_close(session));
  return stats.runs == wanted && runs == wanted ? 0 : 1;
}

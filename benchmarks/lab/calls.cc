// calls LIBRARY WEIGHTS BYTES TIMES ROUNDS: one thread, rounds of inferences by the library's own functions, as Python calls them, and by
// the C interface in turns. Prints for each round both loops' microseconds per inference, of the clock and of the processor. Inputs stay
// as they lie, outputs are not read.
#include <flexcomp.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace {

namespace ffi = tvm::ffi;

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
  const int times = std::atoi(argv[4]), rounds = std::atoi(argv[5]);
  const std::string path = argv[1], chosen = std::string("{\"library_path\": \"") + path + "\", \"threads\": 1, \"budget_bytes\": " + argv[3] + "}";
  const auto own = ffi::Module::LoadFromFile(path)->GetFunction("open").value()(ffi::String(argv[2]), ffi::String(chosen)).cast<ffi::Module>();
  const ffi::Function run = own->GetFunction("run_in_place").value(), nothing = ffi::Function::FromPacked([](ffi::PackedArgs, ffi::Any*) {});

  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  options.weights = argv[2];
  options.threads = 1;
  options.budget = std::strtoull(argv[3], nullptr, 10);
  flexcomp_session* session;
  Require(flexcomp_open(argv[1], &options, &session));
  for (int round = -1; round < rounds; ++round) {  // the first one warms
    const Cost library = Measure(times, [&] { run(nothing, nothing); });
    const Cost interface = Measure(times, [&] { Require(flexcomp_run_in_place(session, Keep, Keep, nullptr)); });
    if (round >= 0) std::printf("%.4f %.4f %.4f %.4f\n", library.wall_us, library.cpu_us, interface.wall_us, interface.cpu_us);
  }
  flexcomp_stats stats = {};
  stats.size = sizeof stats;
  Require(flexcomp_get_stats(session, &stats));
  Require(flexcomp_close(session));
  return stats.runs == static_cast<uint64_t>(times) * static_cast<uint64_t>(rounds + 1) ? 0 : 1;
}

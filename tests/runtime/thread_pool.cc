// Launches of all tasks and of one less, in any order: each task runs once, and a thread that is spared sleeps. And when one is.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "session/loader_core.h"
#include "threads/thread_pool.h"

using flexcomp::CpuSet;
using flexcomp::ParallelGroupEnv;
using flexcomp::ThreadPool;

namespace {

constexpr int kLaunches = 20000;

void Require(bool holds, const char* what, int number) {
  if (holds) return;
  std::fprintf(stderr, "%s (%d)\n", what, number);
  std::_Exit(1);
}

struct Seen {
  std::vector<std::atomic<int>> runs;
  std::atomic<int> tasks = 0;
  explicit Seen(int threads) : runs(threads) {}
};

int Note(int task, ParallelGroupEnv* env, void* data) {
  auto& seen = *static_cast<Seen*>(data);
  ++seen.runs[task];
  seen.tasks = env->num_task;
  return 0;
}

void Try(int threads, std::mt19937& random) {
  ThreadPool pool(threads, CpuSet());
  bool spared = false;
  for (int launch = 0; launch < kLaunches; ++launch) {
    if (random() % 8 == 0) pool.Spare(spared = random() % 2 != 0);
    Seen seen(threads);
    Require(pool.Launch(Note, &seen) == 0, "a launch failed", launch);
    const int tasks = spared && threads > 1 ? threads - 1 : threads;
    Require(seen.tasks == tasks, "tasks were told of another number", seen.tasks);
    for (int task = 0; task < threads; ++task) Require(seen.runs[task] == (task < tasks ? 1 : 0), "a task did not run once", task);
  }
}

// What an inference waits for loads, in parts of its time, decides; a few milliseconds do not.
void TryLoaderCore() {
  flexcomp::LoaderCore::Time now;
  double stall_s = 1;
  flexcomp::LoaderCore core(now, stall_s);
  int number = 0;
  const auto require = [&](std::chrono::milliseconds time, double waited, bool wanted) {
    now += time;
    stall_s += waited * std::chrono::duration<double>(time).count();
    Require(core.Wanted(now, stall_s) == wanted, "the core is left to the loader, or is not, at the wrong time", number++);
  };
  using namespace std::chrono_literals;
  require(5ms, 0, true);
  require(20ms, 0.2, true);
  require(20ms, 0.05, false);
  require(20ms, 0.4, false);
  require(5ms, 1, false);
  require(20ms, 0.6, true);
  require(20ms, 0.4, true);
}

}  // namespace

int main() {
  TryLoaderCore();
  std::mt19937 random(1);
  for (int threads = 1; threads <= 4; ++threads) Try(threads, random);
}

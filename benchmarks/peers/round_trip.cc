// Nanoseconds that a cache line takes from one core to another and back: the median of 60 turns of 200.
//
//     round_trip CORE OTHER_CORE
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kTurns = 60, kTrips = 200;
alignas(128) std::atomic<int> ball{0};

void Pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) {
    std::perror("round_trip: cannot use the core");
    std::exit(1);
  }
}

void Await(int value) {
  while (ball.load(std::memory_order_acquire) != value) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::thread other([core = std::atoi(argv[2])] {
    Pin(core);
    for (int i = 0; i < kTurns * kTrips; ++i) {
      Await(2 * i + 1);
      ball.store(2 * i + 2, std::memory_order_release);
    }
  });
  Pin(std::atoi(argv[1]));
  std::vector<double> turns;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = turn * kTrips; i < (turn + 1) * kTrips; ++i) {
      ball.store(2 * i + 1, std::memory_order_release);
      Await(2 * i + 2);
    }
    turns.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kTrips);
  }
  other.join();
  std::sort(turns.begin(), turns.end());
  std::printf("%.1f\n", turns[kTurns / 2]);
}

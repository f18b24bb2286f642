#include "switching.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <random>
#include <thread>

#include "process_memory.h"

namespace flexcomp::runner {
namespace {

// The threads that run inferences, until stopped or until one fails.
class Callers {
 public:
  explicit Callers(const SwitchTest& test) {
    for (int i = 0; i < test.callers; ++i) threads_.emplace_back([&] { Main(test.run); });
  }
  ~Callers() { Stop(); }

  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  bool stopped() const { return stop_; }
  uint64_t runs() const { return runs_; }
  uint64_t wrong() const { return wrong_; }
  void Rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void Main(const std::function<bool()>& run) {
    try {
      while (!stop_) {
        if (!run()) ++wrong_;
        ++runs_;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> runs_{0}, wrong_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace

SwitchReport SwitchWhileRunning(const SwitchTest& test) {
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::mt19937_64 random(test.seed);
  std::uniform_real_distribution<double> pause(0, test.pause_ms);
  SwitchReport report;
  report.switches.reserve(test.switches);  // no memory is asked for while memory is measured
  Callers callers(test);
  for (int i = 0; i < test.switches && !callers.stopped(); ++i) {
    std::this_thread::sleep_for(Milliseconds(pause(random)));
    const size_t budget = random() % test.budgets.size();
    const auto start = Clock::now();
    test.set_budget(test.budgets[budget]);
    const double taken = Milliseconds(Clock::now() - start).count();
    report.switches.push_back({budget, taken, RssBytes()});
  }
  callers.Stop();
  callers.Rethrow();
  report.runs = callers.runs();
  report.wrong = callers.wrong();
  return report;
}

}  // namespace flexcomp::runner

#include "switch_report.h"

#include <chrono>
#include <random>
#include <vector>

#include "process_memory.h"
#include "switching.h"

namespace flexcomp::runner {
namespace {

namespace json = tvm::ffi::json;

json::Object Described(const Model::Rung& rung, double milliseconds, uint64_t rss) {
  json::Object object;
  object.Set("budget_bytes", rung.budget);
  object.Set("arena_bytes", rung.arena);
  object.Set("switch_ms", milliseconds);
  object.Set("rss_bytes", static_cast<int64_t>(rss));
  return object;
}

}  // namespace

void SwitchBetweenRuns(const Model& model, const Inputs& inputs, const Outputs& outputs, const Arguments& arguments,
                       json::Object& report) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Model::Rung> ladder = model.Ladder();
  std::mt19937_64 random(arguments.seed);
  json::Array switches;
  for (int i = 0; i < arguments.switch_budgets; ++i) {
    const Model::Rung& rung = ladder[random() % ladder.size()];
    const auto start = Clock::now();
    model.SetBudget(rung.budget);
    const double taken = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    const bool last = i + 1 == arguments.switch_budgets;
    model.Run(inputs, last ? Model::Look([&](tvm::ffi::PackedArgs places) { outputs.Write(places); }) : Model::Look());
    json::Object done = Described(rung, taken, RssBytes());
    done.Set("latency_ms", model.Stats()["latency_ms"]);
    switches.push_back(done);
  }
  report.Set("switches", switches);
}

void SwitchDuringRuns(const Model& model, const Inputs& inputs, const Arguments& arguments, double pause_ms,
                      json::Object& report) {
  const std::vector<Model::Rung> ladder = model.Ladder();
  Expected expected(model.OutputPorts());
  model.Run(inputs, [&](tvm::ffi::PackedArgs places) { expected.Remember(places); });
  SwitchTest test;
  for (const Model::Rung& rung : ladder) test.budgets.push_back(rung.budget);
  test.switches = arguments.switch_budgets;
  test.callers = arguments.callers;
  test.seed = arguments.seed;
  test.pause_ms = pause_ms;
  test.set_budget = [&](int64_t budget) { model.SetBudget(budget); };
  test.run = [&] {
    bool right = false;
    model.Run(inputs, [&](tvm::ffi::PackedArgs places) { right = expected.Agrees(places); });
    return right;
  };
  const SwitchReport done = SwitchWhileRunning(test);
  json::Array switches;
  for (const Switch& one : done.switches) switches.push_back(Described(ladder[one.budget], one.milliseconds, one.rss));
  json::Object concurrent;
  concurrent.Set("runs", static_cast<int64_t>(done.runs));
  concurrent.Set("wrong", static_cast<int64_t>(done.wrong));
  concurrent.Set("restarts", model.Stats()["restarts"]);
  report.Set("switches", switches);
  report.Set("concurrent", concurrent);
}

}  // namespace flexcomp::runner

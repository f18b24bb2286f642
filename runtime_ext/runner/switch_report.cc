#include "switch_report.h"

#include <chrono>
#include <random>
#include <vector>

#include "process_memory.h"
#include "switching.h"

namespace flexcomp::runner {
namespace {

Json Described(const flexcomp_budget_info& rung, double milliseconds, uint64_t rss) {
  Json object = Json::Object();
  object.Set("budget_bytes", rung.budget);
  object.Set("arena_bytes", rung.arena);
  object.Set("switch_ms", milliseconds);
  object.Set("rss_bytes", rss);
  return object;
}

}  // namespace

void SwitchBetweenRuns(const Model& model, const Inputs& inputs, const Outputs& outputs, const Arguments& arguments,
                       Json& report) {
  using Clock = std::chrono::steady_clock;
  const std::vector<flexcomp_budget_info> ladder = model.Ladder();
  std::mt19937_64 random(arguments.seed);
  Json switches = Json::Array();
  for (int i = 0; i < arguments.switch_budgets; ++i) {
    const flexcomp_budget_info& rung = ladder[random() % ladder.size()];
    const auto start = Clock::now();
    model.SetBudget(rung.budget);
    const double taken = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    const bool last = i + 1 == arguments.switch_budgets;
    model.Run(inputs, last ? Model::Look([&](Places places) { outputs.Write(places); }) : Model::Look());
    Json done = Described(rung, taken, RssBytes());
    done.Set("latency_ms", model.Stats().latency_s * 1e3);
    switches.Append(done);
  }
  report.Set("switches", switches);
}

void SwitchDuringRuns(const Model& model, const Inputs& inputs, const Arguments& arguments, double pause_ms,
                      Json& report) {
  const std::vector<flexcomp_budget_info> ladder = model.Ladder();
  Expected expected(model.OutputPorts());
  model.Run(inputs, [&](Places places) { expected.Remember(places); });
  SwitchTest test;
  for (const flexcomp_budget_info& rung : ladder) test.budgets.push_back(rung.budget);
  test.switches = arguments.switch_budgets;
  test.callers = arguments.callers;
  test.seed = arguments.seed;
  test.pause_ms = pause_ms;
  test.set_budget = [&](uint64_t budget) { model.SetBudget(budget); };
  test.run = [&] {
    bool right = false;
    model.Run(inputs, [&](Places places) { right = expected.Agrees(places); });
    return right;
  };
  const SwitchReport done = SwitchWhileRunning(test);
  Json switches = Json::Array();
  for (const Switch& one : done.switches) switches.Append(Described(ladder[one.budget], one.milliseconds, one.rss));
  Json concurrent = Json::Object();
  concurrent.Set("runs", done.runs);
  concurrent.Set("wrong", done.wrong);
  concurrent.Set("restarts", model.Stats().restarts);
  report.Set("switches", switches);
  report.Set("concurrent", concurrent);
}

}  // namespace flexcomp::runner

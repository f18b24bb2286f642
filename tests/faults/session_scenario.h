// One session from its opening to its end.
#pragma once

#include <thread>

#include "harness.h"

namespace faults {

struct SessionScenario final : Scenario {
  void Run(const char* step, const ffi::Module& session) const {
    std::vector<float> in = x, out(y.size(), std::numeric_limits<float>::quiet_NaN());
    int64_t shape[] = {static_cast<int64_t>(x.size())};
    const auto tensor = [&](std::vector<float>& values) {
      return DLTensor{values.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
    };
    DLTensor from = tensor(in), to = tensor(out);
    Call(step, session, "run", {&from, &to});
    if (!Right(out.data())) Fail("wrong", step, "the output is wrong");
  }

  void RunInPlace(const char* step, const ffi::Module& session) const {
    bool right = false;
    const ffi::Function fill = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) {
      std::memcpy(places[0].cast<DLTensor*>()->data, x.data(), x.size() * sizeof(float));
    });
    const ffi::Function drain = ffi::Function::FromPacked(
        [&](ffi::PackedArgs places, ffi::Any*) { right = Right(static_cast<float*>(places[0].cast<DLTensor*>()->data)); });
    Call(step, session, "run_in_place", {fill, drain});
    if (!right) Fail("wrong", step, "the output is wrong");
  }

  void Play(uint64_t n, int variant) const override {
    const ffi::Any weights_path = ffi::String(weights), json = ffi::String(options);
    const ffi::String path(library);
    // The first time the dynamic linker has most to do, and what it leaves half done is not ours.
    const auto linked = ffi::Module::LoadFromFile(path);
    fault_arm(n, variant, &outcome->call);
    const auto program = Attempt("load", [&] { return ffi::Module::LoadFromFile(path); }, true);
    Call("info", program, "info");
    const auto session = Call("open", program, "open", {weights_path, json}).cast<ffi::Module>();
    Run("first run", session);
    Run("second run", session);
    RunInPlace("run in place", session);
    for (const int64_t budget : {budgets.front(), budgets.back(), budgets[1], budgets.front()}) {
      Call("switch", session, "set_budget", {budget});
      Run("run after a switch", session);
      Run("next run", session);
    }
    // As a watch does.
    std::thread caller([&] {
      fault_step(false);
      for (int i = 0; i < 4; ++i) Run("run beside a watch", session);
    });
    for (int i = 0; i < 2; ++i)
      for (const int64_t budget : {budgets.back(), budgets.front(), budgets[1]}) {
        Call("stats in a watch", session, "stats");
        Call("resident_arena in a watch", session, "resident_arena");
        Call("switch in a watch", session, "set_budget", {budget});
      }
    caller.join();
    Run("last run", session);
    Call("trace", session, "trace");
    Call("close", session, "close");
    RequireClosed(session);
  }
};

}  // namespace faults

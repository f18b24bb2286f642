// One session from its opening to its end.
#pragma once

#include <thread>

#include "harness.h"

namespace faults {

// A session, however it is called.
struct Opened {
  virtual ~Opened() = default;
  virtual void Run(const char* step) = 0;
  virtual void RunInPlace(const char* step) = 0;
  virtual void SetBudget(const char* step, int64_t budget) = 0;
  virtual void Look(const char* step) = 0;  // at its statistics
};

// What happens between opening and closing.
inline void Live(Opened& session, const std::vector<int64_t>& budgets) {
  session.Run("first run");
  session.Run("second run");
  session.RunInPlace("run in place");
  for (const int64_t budget : {budgets.front(), budgets.back(), budgets[1], budgets.front()}) {
    session.SetBudget("switch", budget);
    session.Run("run after a switch");
    session.Run("next run");
  }
  // As a watch does.
  std::thread caller([&] {
    fault_step(false);
    for (int i = 0; i < 4; ++i) session.Run("run beside a watch");
  });
  for (int i = 0; i < 2; ++i)
    for (const int64_t budget : {budgets.back(), budgets.front(), budgets[1]}) {
      session.Look("look in a watch");
      session.SetBudget("switch in a watch", budget);
    }
  caller.join();
  session.Run("last run");
}

class SessionScenario final : public Scenario {
 public:
  void Play(uint64_t n, int variant) const override {
    const ffi::Any weights_path = ffi::String(weights), json = ffi::String(options);
    const ffi::String path(library);
    // The first time the dynamic linker has most to do, and what it leaves half done is not ours.
    const auto linked = ffi::Module::LoadFromFile(path);
    fault_arm(n, variant, &outcome->call);
    const auto program = Attempt("load", [&] { return ffi::Module::LoadFromFile(path); }, true);
    Call("info", program, "info");
    const auto module = Call("open", program, "open", {weights_path, json}).cast<ffi::Module>();
    Session session(*this, module);
    Live(session, budgets);
    Call("trace", module, "trace");
    Call("close", module, "close");
    RequireClosed(module);
  }

 private:
  class Session final : public Opened {
   public:
    Session(const Scenario& scenario, const ffi::Module& module) : scenario_(scenario), module_(module) {}

    void Run(const char* step) override {
      std::vector<float> in = scenario_.x, out(scenario_.y.size(), std::numeric_limits<float>::quiet_NaN());
      int64_t shape[] = {static_cast<int64_t>(in.size())};
      const auto tensor = [&](std::vector<float>& values) {
        return DLTensor{values.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
      };
      DLTensor from = tensor(in), to = tensor(out);
      scenario_.Call(step, module_, "run", {&from, &to});
      scenario_.RequireRight(step, out.data());
    }

    void RunInPlace(const char* step) override {
      bool right = false;
      const ffi::Function fill = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) {
        std::memcpy(places[0].cast<DLTensor*>()->data, scenario_.x.data(), scenario_.x.size() * sizeof(float));
      });
      const ffi::Function drain = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) {
        right = scenario_.Right(static_cast<float*>(places[0].cast<DLTensor*>()->data));
      });
      scenario_.Call(step, module_, "run_in_place", {fill, drain});
      if (!right) Fail("wrong", step, "the output is wrong");
    }

    void SetBudget(const char* step, int64_t budget) override { scenario_.Call(step, module_, "set_budget", {budget}); }

    void Look(const char* step) override {
      scenario_.Call(step, module_, "stats");
      scenario_.Call(step, module_, "resident_arena");
    }

   private:
    const Scenario& scenario_;
    const ffi::Module& module_;
  };
};

}  // namespace faults

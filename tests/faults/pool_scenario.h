// A pool from its making to its closing: models, requests of all kinds, budgets.
#pragma once

#include <tvm/ffi/extra/json.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "harness.h"

namespace faults {

class PoolScenario final : public Scenario {
 public:
  explicit PoolScenario(int lanes) : lanes_(lanes) {}

  // The first time the dynamic linker has most to do, and what it leaves half done is not ours.
  void Prepare() override {
    runtime_ = ffi::Module::LoadFromFile(std::getenv("FLEXCOMP_RUNTIME"));
    program_ = ffi::Module::LoadFromFile(library);
  }

  void Play(uint64_t n, int variant) const override {
    const ffi::Module& program = *program_;
    const ffi::Function create = ffi::Function::GetGlobalRequired("flexcomp.pool.1.create");
    const int64_t largest = 4 * budgets.back();
    fault_arm(n, variant, &outcome->call);
    const ffi::String options = "{\"budget_bytes\": " + std::to_string(largest) + ", \"lanes\": " + std::to_string(lanes_) + ", \"threads\": 2}";
    const auto pool = Attempt("create", [&] { return create(options).cast<ffi::Module>(); });
    // Three models of two networks.
    const int64_t first = Add(pool, program, "first", ""), second = Add(pool, program, "second", ", \"trace\": true");
    const int64_t same = Add(pool, program, "same", "");
    for (const int64_t model : {first, second, same, first}) Run("run", pool, model);

    for (const int64_t budget : {largest, LeastOf(pool)}) {
      Submitted(pool, {first, second, first});
      Cancelled(pool, first);
      Here(pool, first);
      std::thread caller([&] {
        fault_step(false);
        for (int i = 0; i < 3; ++i) Run("run while the budget changes", pool, second);
      });
      Call("set_budget", pool, "set_budget", {budget});
      Call("stats while it is used", pool, "stats_in_passing");
      caller.join();
      RequireWithin(pool, budget);
    }
    Call("remove", pool, "remove", {ffi::String("second")});
    for (const int64_t model : {first, same}) Run("run of others", pool, model);
    Call("set_budget", pool, "set_budget", {largest});
    const int64_t again = Add(pool, program, "second", ", \"trace\": true");
    for (int i = 0; i < 2; ++i)
      for (const int64_t model : {again, first, same}) Run("run in the end", pool, model);
    Submitted(pool, {again, first});
    RequireModels(pool, {"first", "same", "second"});
    RequireWithin(pool, largest);
    Call("close", pool, "close");
    RequireClosed(pool);
  }

 private:
  struct Tensors {
    explicit Tensors(const Scenario& scenario) : in(New(scenario.x.size())), out(New(scenario.y.size())) {
      std::memcpy(in.data_ptr(), scenario.x.data(), scenario.x.size() * sizeof(float));
      for (size_t i = 0; i < scenario.y.size(); ++i) static_cast<float*>(out.data_ptr())[i] = std::numeric_limits<float>::quiet_NaN();
    }
    ffi::Tensor in, out;

   private:
    struct Allocator {
      void AllocData(DLTensor* tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor)); }
      void FreeData(DLTensor* tensor) { std::free(tensor->data); }
    };
    // That of a caller, who has memory.
    static ffi::Tensor New(size_t count) {
      fault_step(false);
      return ffi::Tensor::FromNDAlloc(Allocator(), {static_cast<int64_t>(count)}, {kDLFloat, 32, 1}, {kDLCPU, 0});
    }
  };

  static const ffi::String& Text(const char* text) {
    static thread_local ffi::String kept;
    return kept = text;
  }

  int64_t Add(const ffi::Module& pool, const ffi::Module& program, const char* name, const char* more) const {
    const std::string session = options.substr(0, options.size() - 1) + more + "}";
    const ffi::String model(name), asked("{\"rate\": 1}"), files(library), weights_file(weights), json(session);
    return Call("add", pool, "add", {model, asked, program, files, weights_file, json}).cast<int64_t>();
  }

  void RequireRight(const char* step, const Tensors& tensors) const {
    if (!Right(static_cast<const float*>(tensors.out.data_ptr()))) Fail("wrong", step, "the output is wrong");
  }

  void Run(const char* step, const ffi::Module& pool, int64_t model) const {
    const Tensors tensors(*this);
    const ffi::String asked("{}");
    const ffi::Any waited = Call(step, pool, "run", {model, asked, tensors.in, tensors.out});
    if (waited.type_index() != ffi::TypeIndex::kTVMFFIFloat) Fail("wrong", step, "it was not run");
    RequireRight(step, tensors);
  }

  // As a collector does: a request is told of until it is forgotten.
  void Submitted(const ffi::Module& pool, const std::vector<int64_t>& models) const {
    const ffi::String asked("{\"collected\": true}");
    std::vector<Tensors> tensors;
    std::vector<int64_t> tickets;
    for (const int64_t model : models) {
      tensors.emplace_back(*this);
      tickets.push_back(Call("ticket", pool, "ticket").cast<int64_t>());
      const ffi::Any said = Call("submit", pool, "submit", {tickets.back(), model, asked, tensors.back().in, tensors.back().out});
      if (said.cast<int64_t>() != 1) Fail("wrong", "submit", "it does not wait");
    }
    for (size_t left = models.size(); left > 0; --left) {
      const int64_t ticket = Call("collect", pool, "collect").cast<int64_t>();
      const auto found = std::find(tickets.begin(), tickets.end(), ticket);
      if (found == tickets.end()) Fail("wrong", "collect", "it is no request of ours, or was forgotten");
      const size_t i = static_cast<size_t>(found - tickets.begin());
      Finish("wait", pool, ticket, models[i], tensors[i]);
      tickets[i] = 0;
    }
  }

  // Its answer; where it failed, which it says again if it is asked again, that of another like it.
  void Finish(const char* step, const ffi::Module& pool, int64_t ticket, int64_t model, const Tensors& tensors) const {
    bool forgotten = false;
    Attempt(step, [&] {
      if (forgotten) return Run("run instead", pool, model);
      try {
        (*pool->GetFunction("wait"))(ticket);
      } catch (const ffi::Error&) {
        Forget(pool, ticket);
        forgotten = true;
        throw;
      }
    });
    if (forgotten) return;
    RequireRight(step, tensors);
    Forget(pool, ticket);
  }

  void Forget(const ffi::Module& pool, int64_t ticket) const { Call("forget", pool, "forget", {ticket}); }

  void Cancelled(const ffi::Module& pool, int64_t model) const {
    const Tensors tensors(*this);
    const ffi::String asked("{}");
    const int64_t ticket = Call("ticket", pool, "ticket").cast<int64_t>();
    Call("submit", pool, "submit", {ticket, model, asked, tensors.in, tensors.out});
    const bool cancelled = Call("cancel", pool, "cancel", {ticket}).cast<bool>();
    if (!cancelled) return Finish("wait for one that was not cancelled", pool, ticket, model, tensors);
    if (Call("wait", pool, "wait", {ticket}).type_index() != ffi::TypeIndex::kTVMFFINone) Fail("wrong", "wait", "it was not cancelled");
    Forget(pool, ticket);
  }

  void Here(const ffi::Module& pool, int64_t model) const {
    const Tensors tensors(*this);
    const ffi::String asked("{\"here\": true}");
    const int64_t ticket = Call("ticket", pool, "ticket").cast<int64_t>();
    Call("submit here", pool, "submit", {ticket, model, asked, tensors.in, tensors.out});
    Finish("wait for one that ran here", pool, ticket, model, tensors);
  }

  int64_t LeastOf(const ffi::Module& pool) const { return Number(Call("plan", pool, "plan"), "least_bytes"); }

  static int64_t Number(const ffi::Any& said, const char* name) {
    return ffi::json::Parse(said.cast<ffi::String>()).cast<ffi::json::Object>()[ffi::String(name)].cast<int64_t>();
  }

  void RequireWithin(const ffi::Module& pool, int64_t budget) const {
    const ffi::Any stats = Call("stats", pool, "stats");
    if (Number(stats, "budget_bytes") != budget) Fail("wrong", "stats", "another budget is in force");
    if (Number(stats, "claimed_bytes") > budget) Fail("wrong", "stats", "more is held than the budget");
  }

  void RequireModels(const ffi::Module& pool, const std::set<std::string>& names) const {
    const auto said = ffi::json::Parse(Call("names", pool, "names").cast<ffi::String>()).cast<ffi::json::Array>();
    std::set<std::string> found;
    for (const auto& name : said) found.insert(name.cast<ffi::String>());
    if (found != names || said.size() != names.size()) Fail("wrong", "names", "there are other models");
  }

  const int lanes_;
  std::optional<ffi::Module> runtime_, program_;
};

}  // namespace faults

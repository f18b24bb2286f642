// One session of the C interface whose weights come from a descriptor, or from a reader that makes system calls.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <flexcomp.h>

#include <optional>
#include <string_view>

#include "session_scenario.h"

namespace faults {

class SourceScenario final : public Scenario {
 public:
  explicit SourceScenario(std::string_view kind) : reads_(kind == "reader") {}

  // The first time the dynamic linker has most to do, and what it leaves half done is not ours.
  void Prepare() override {
    linked_ = ffi::Module::LoadFromFile(library);
    runtime_ = ::dlopen(std::getenv("FLEXCOMP_RUNTIME"), RTLD_NOW);
    descriptor_ = ::open(weights.c_str(), O_RDONLY | O_CLOEXEC);
    if (runtime_ == nullptr || descriptor_ < 0) std::exit(3);
  }

  void Play(uint64_t n, int variant) const override {
    fault_arm(n, variant, &outcome->call);
    Session session(*this, Open());
    Live(session, budgets);
    session.Close();
  }

 private:
  // Calls flexcomp_`name`; a status becomes an error of its kind.
  template <typename... Arguments>
  void Call(const char* step, const char* name, const Arguments&... arguments) const {
    Attempt(step, [&] {
      // What a thread keeps in a library that is opened at run time is glibc's to allocate, which ends the process if it cannot.
      fault_step(false);
      Found<const char*()>("message")();
      const auto function = Found<flexcomp_status(Arguments...)>(name);
      fault_step(true);
      if (const flexcomp_status status = function(arguments...); status != FLEXCOMP_OK)
        throw ffi::Error(KindOf(status), Found<const char*()>("message")(), "");
    });
  }

  template <typename Function>
  Function* Found(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(runtime_, (std::string("flexcomp_") + name).c_str()));
  }

  static const char* KindOf(flexcomp_status status) {
    switch (status) {
      case FLEXCOMP_ERROR_ARTIFACT: return "ArtifactError";
      case FLEXCOMP_ERROR_BUDGET: return "BudgetError";
      case FLEXCOMP_ERROR_STORAGE: return "StorageError";
      case FLEXCOMP_ERROR_EXECUTION:
      case FLEXCOMP_ERROR_OUT_OF_MEMORY: return "ExecutionError";
      default: return "another status";
    }
  }

  static int64_t Read(void* context, uint64_t offset, void* buffer, uint64_t nbytes) {
    const ssize_t got = ::pread(*static_cast<const int*>(context), buffer, nbytes, static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  }

  flexcomp_session* Open() const {
    const auto nbytes = static_cast<uint64_t>(::lseek(descriptor_, 0, SEEK_END));
    const flexcomp_source read = FLEXCOMP_FROM_READER(Read, const_cast<int*>(&descriptor_), nbytes);
    const flexcomp_source range = FLEXCOMP_FROM_DESCRIPTOR(descriptor_, 0, nbytes);
    flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
    options.threads = 2;
    options.budget = static_cast<uint64_t>(budgets[1]);
    options.source = reads_ ? &read : &range;
    flexcomp_session* session = nullptr;
    Call<const char*, const flexcomp_options*, flexcomp_session**>("open", "open", library.c_str(), &options, &session);
    return session;
  }

  class Session final : public Opened {
   public:
    Session(const SourceScenario& scenario, flexcomp_session* session) : scenario_(scenario), session_(session) {}

    void Run(const char* step) override {
      std::vector<float> in = scenario_.x, out(scenario_.y.size(), std::numeric_limits<float>::quiet_NaN());
      const flexcomp_tensor from = FLEXCOMP_TENSOR(in.data(), in.size() * sizeof(float));
      const flexcomp_tensor to = FLEXCOMP_TENSOR(out.data(), out.size() * sizeof(float));
      scenario_.Call<flexcomp_session*, const flexcomp_tensor*, uint32_t, const flexcomp_tensor*, uint32_t>(step, "run", session_, &from, 1, &to, 1);
      scenario_.RequireRight(step, out.data());
    }

    void RunInPlace(const char* step) override {
      struct {
        const Scenario& scenario;
        bool right;
      } seen{scenario_, false};
      using Seen = decltype(seen);
      const flexcomp_callback fill = [](void* context, const flexcomp_tensor* inputs, uint32_t) {
        std::memcpy(inputs[0].data, static_cast<Seen*>(context)->scenario.x.data(), inputs[0].nbytes);
        return flexcomp_status{FLEXCOMP_OK};
      };
      const flexcomp_callback drain = [](void* context, const flexcomp_tensor* outputs, uint32_t) {
        auto* const own = static_cast<Seen*>(context);
        own->right = own->scenario.Right(static_cast<const float*>(outputs[0].data));
        return flexcomp_status{FLEXCOMP_OK};
      };
      scenario_.Call<flexcomp_session*, flexcomp_callback, flexcomp_callback, void*>(step, "run_in_place", session_, fill, drain, &seen);
      if (!seen.right) Fail("wrong", step, "the output is wrong");
    }

    void SetBudget(const char* step, int64_t budget) override {
      scenario_.Call<flexcomp_session*, uint64_t>(step, "set_budget", session_, static_cast<uint64_t>(budget));
    }

    void Look(const char* step) override {
      flexcomp_stats stats{};
      stats.size = sizeof stats;
      scenario_.Call<flexcomp_session*, flexcomp_stats*>(step, "get_stats", session_, &stats);
    }

    void Close() { scenario_.Call<flexcomp_session*>("close", "close", session_); }

   private:
    const SourceScenario& scenario_;
    flexcomp_session* const session_;
  };

  const bool reads_;
  std::optional<ffi::Module> linked_;
  void* runtime_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace faults

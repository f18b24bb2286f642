// Kernels on the cores of this machine, with threads and workspace of our own.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "affinity.h"
#include "model_library.h"
#include "processor.h"
#include "thread_pool.h"

namespace flexcomp {

class CpuProcessor final : public Processor {
 public:
  // `marker` is the name of one kernel of the model. See ModelLibrary and ThreadPool for the rest.
  CpuProcessor(const std::string& marker, const std::string& library_path, int threads, const std::vector<int>& cpus);

  Kernel Find(const std::string& kernel) override;
  void Enter() override;
  void Leave() noexcept override;
  int Call(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept override {
    TVMFFIAny result{};
    return kernel(nullptr, args, count, &result);
  }
  int threads() const noexcept override { return threads_; }

 private:
  void InstallHooks() noexcept;

  ModelLibrary library_;
  std::vector<std::pair<void**, void*>> hooks_;  // pointers of the library to its backend, and what they shall be
  int threads_;
  int caller_cpu_;
  ThreadPool pool_;
  std::optional<ScopedPin> pin_;
  std::optional<ThreadPool::Scope> scope_;
};

}  // namespace flexcomp

// Kernels on the cores of this machine, with threads and workspace of our own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/model_library.h"
#include "kernels/processor.h"
#include "threads/cpu_set.h"
#include "threads/thread_pool.h"

namespace flexcomp {

class CpuProcessor final : public Processor {
 public:
  // `marker` is one layer of the model; `linked` nullptr: its kernels are in a library. See ModelLibrary and ThreadPool for the rest.
  CpuProcessor(const Layer& marker, const std::string& library_path, const flexcomp_network* linked, int threads, const CpuSet& cpus);

  Kernel Find(const Layer& layer) override;
  Kernel FindPreparation(const Layer& layer) override;
  void Enter() override;
  void Leave() noexcept override;
  void Spare(bool one) noexcept override { pool_.Spare(one); }
  std::unique_ptr<SessionMemory> MakeMemory(uint64_t nbytes) override;
  int Step(uint32_t, uint32_t, Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept override {
    return Call(kernel, args, count);
  }
  int Prepare(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept override { return Call(kernel, args, count); }

 private:
  static int Call(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept {
    TVMFFIAny result{};
    return reinterpret_cast<TVMFFISafeCallType>(const_cast<void*>(kernel))(nullptr, args, count, &result);
  }

  ModelLibrary library_;
  CpuSet cpus_;
  ThreadPool pool_;
  std::optional<ScopedAffinity> affinity_;
  std::optional<ThreadPool::Scope> scope_;
};

}  // namespace flexcomp

// Kernels on a GPU, by the driver alone.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cuda/deliveries.h"
#include "cuda/device.h"
#include "cuda/loaded_kernel.h"
#include "cuda/mapped_memory.h"
#include "cuda/step_graph.h"
#include "cuda/stream_order.h"
#include "kernels/model_library.h"
#include "kernels/processor.h"
#include "program/shapes.h"

namespace flexcomp::cuda {

// Steps are given to one stream and run later, in their order, after the loads that they need; Finish waits for the
// steps.
class CudaProcessor final : public Processor {
 public:
  // `shapes` must outlive the processor. Throws TargetError, ArtifactError, ExecutionError.
  CudaProcessor(const Shapes& shapes, const std::string& library_path);
  ~CudaProcessor() override;

  Kernel Find(const Layer& layer) override;
  Kernel FindPreparation(const Layer& layer) override;
  void Enter() override {}
  void Leave() noexcept override {}
  std::unique_ptr<SessionMemory> MakeMemory(uint64_t nbytes) override;
  Delivery* delivery() noexcept override { return delivery_.get(); }
  void Use(const Tapes& tapes) noexcept override;
  void AwaitLoads(uint32_t step, uint32_t need) override;
  int Step(uint32_t step, uint32_t need, Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept override;
  int Prepare(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept override;
  bool Replays() const noexcept override { return true; }
  int Replay(std::span<const Call> calls) noexcept override;
  void Finish() override;
  void Lose() noexcept override { device_.Lose({kUnknownError, "cuLaunchKernel"}); }
  void RequireAlive() const override { device_.RequireAlive(); }
  tvm::ffi::Tensor NewTensor(const TensorType& type) override;
  DeviceRates MeasureRates() override;
  uint64_t staging_nbytes() const noexcept override { return device_.integrated() ? 0 : kPinnedNbytes; }

 private:
  int Tell(const Refusal& refusal) noexcept;  // in tvm_ffi's manner

  const Shapes& shapes_;
  const std::shared_ptr<Device> shared_;  // with the tensors that callers hold
  Device& device_;
  ModelLibrary library_;
  std::map<const void*, std::unique_ptr<LoadedKernel>> kernels_;  // by where the library has them
  StreamOrder order_;
  StepGraph graph_;
  const MappedMemory* mapped_ = nullptr;  // of an integrated GPU, once there is one
  std::unique_ptr<Delivery> delivery_;
};

}  // namespace flexcomp::cuda

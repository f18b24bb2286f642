// Where kernels run.
#pragma once

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "kernels/device_rates.h"
#include "program/program.h"
#include "memory/session_memory.h"
#include "storage/delivery.h"

namespace flexcomp {

// A compiled kernel, which its processor knows how to call with arguments as of tvm_ffi.
using Kernel = const void*;

struct Call;  // kernels/call_table.h

class Processor {
 public:
  virtual ~Processor() = default;

  // The kernel of a layer. Throws ArtifactError if none takes the layer's arguments.
  virtual Kernel Find(const Layer& layer) = 0;
  // The kernel that prepares a layer's weights. Throws in the same way.
  virtual Kernel FindPreparation(const Layer& layer) = 0;

  // Around the steps of one inference, on the thread that makes the calls.
  virtual void Enter() = 0;
  virtual void Leave() noexcept = 0;

  // Whether steps from now on leave one core of theirs to the loader. Between steps.
  virtual void Spare(bool) noexcept {}

  // Memory for an arena of that many bytes. Throws BudgetError.
  virtual std::unique_ptr<SessionMemory> MakeMemory(uint64_t nbytes) = 0;
  // The delivery of weights; nullptr: weights are read to their places.
  virtual Delivery* delivery() noexcept { return nullptr; }
  // From now on inferences do these tapes: no step has run, and nothing is loaded. Memory was found at opening.
  virtual void Use(const Tapes&) noexcept {}

  // Waits until the first `need` operations, those of step number `step`, are really there, where steps wait by themselves. Throws
  // ExecutionError.
  virtual void AwaitLoads(uint32_t, uint32_t) {}
  // Runs the kernel of step number `step`, whose first `need` operations are complete, or, on any thread, one that prepares; devices
  // begin to. Non-zero: failed, the error is raised in tvm_ffi's manner.
  virtual int Step(uint32_t step, uint32_t need, Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept = 0;
  virtual int Prepare(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept = 0;
  // Whether the processor can run the steps of an inference, with everything in the arena, as one, faster than one by
  // one: Replay does that, with calls that neither check nor fetch. As Step otherwise.
  virtual bool Replays() const noexcept { return false; }
  virtual int Replay(std::span<const Call>) noexcept { return 0; }
  // Waits until all begun work is over. Throws ExecutionError if any of the work failed.
  virtual void Finish() {}
  // From now on nothing may run: the contents of memory are unknown.
  virtual void Lose() noexcept {}
  // Throws ExecutionError where nothing can run any more.
  virtual void RequireAlive() const {}

  // A tensor of the caller's, in memory of the device. Throws InputError where there is no device, ExecutionError.
  virtual tvm::ffi::Tensor NewTensor(const TensorType&) {
    Raise("InputError", "outputs on a GPU are asked for, and the network was built for CPUs");
  }

  // The costs besides the time of kernels, while nothing runs. Throws InputError where there is no device,
  // ExecutionError.
  virtual DeviceRates MeasureRates() { Raise("InputError", "rates of a GPU are asked for, and the network was built for CPUs"); }

  // Memory of this process, besides the arena, through which weights come to a device.
  virtual uint64_t staging_nbytes() const noexcept { return 0; }
};

// Enters a processor for the scope's lifetime.
class ProcessorScope {
 public:
  explicit ProcessorScope(Processor& processor) : processor_(processor) { processor_.Enter(); }
  ~ProcessorScope() { processor_.Leave(); }
  ProcessorScope(const ProcessorScope&) = delete;
  ProcessorScope& operator=(const ProcessorScope&) = delete;

 private:
  Processor& processor_;
};

}  // namespace flexcomp

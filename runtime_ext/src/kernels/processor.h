// Where kernels run.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>

#include "program/program.h"

namespace flexcomp {

// A compiled kernel, called with the packed convention of tvm_ffi.
using Kernel = TVMFFISafeCallType;

class Processor {
 public:
  virtual ~Processor() = default;

  // The kernel of a layer. Throws ArtifactError if there is none that takes what the layer gives it.
  virtual Kernel Find(const Layer& layer) = 0;
  // The kernel that prepares a layer's weights. Throws in the same way.
  virtual Kernel FindPreparation(const Layer& layer) = 0;

  // Around the steps of one inference, on the thread that makes the calls.
  virtual void Enter() = 0;
  virtual void Leave() noexcept = 0;

  // Runs a kernel to its end, on any thread if it is one that prepares. Non-zero: failed, the error is raised in tvm_ffi's manner.
  virtual int Call(Kernel kernel, const TVMFFIAny* args, int32_t count) noexcept = 0;
};

// Enters a processor for as long as it lives.
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

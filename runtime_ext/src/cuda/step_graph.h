// All steps of an inference as one graph of a device, for the cost of one call.
#pragma once

#include "cuda/device.h"

namespace flexcomp::cuda {

class StepGraph {
 public:
  explicit StepGraph(Device& device) : device_(device) {}
  ~StepGraph() { Clear(); }
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  explicit operator bool() const noexcept { return exec_ != nullptr; }

  // Makes the graph of the work that give_steps() gives to the compute stream, none of which runs.
  template <typename GiveSteps>
  Refusal Capture(const GiveSteps& give_steps) noexcept {
    Clear();
    Refusal refusal = device_.Try(
        "cuStreamBeginCapture", [&](const Driver& driver) { return driver.StreamBeginCapture(device_.compute(), kCaptureThreadLocal); });
    if (refusal) return refusal;
    refusal = give_steps();
    const Refusal end = End();
    return refusal ? refusal : end;
  }
  Refusal Launch() noexcept {
    return device_.Try("cuGraphLaunch", [&](const Driver& driver) { return driver.GraphLaunch(exec_, device_.compute()); });
  }
  // Not while the graph runs.
  void Clear() noexcept;

 private:
  Refusal End() noexcept;

  Device& device_;
  GraphExec exec_ = nullptr;
};

}  // namespace flexcomp::cuda

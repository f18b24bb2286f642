#include "cuda/step_graph.h"

#include <utility>

namespace flexcomp::cuda {

Refusal StepGraph::End() noexcept {
  Graph graph = nullptr;
  const auto end = [&](const Driver& driver) { return driver.StreamEndCapture(device_.compute(), &graph); };
  Refusal refusal = device_.Insist("cuStreamEndCapture", end);  // otherwise the stream would run nothing any more
  if (!refusal) {
    refusal = device_.Try("cuGraphInstantiate", [&](const Driver& driver) { return driver.GraphInstantiate(&exec_, graph, 0); });
    if (refusal) exec_ = nullptr;
  }
  if (graph != nullptr) device_.Insist("cuGraphDestroy", [&](const Driver& driver) { return driver.GraphDestroy(graph); });
  return refusal;
}

void StepGraph::Clear() noexcept {
  if (const GraphExec exec = std::exchange(exec_, nullptr); exec != nullptr)
    device_.Insist("cuGraphExecDestroy", [&](const Driver& driver) { return driver.GraphExecDestroy(exec); });
}

}  // namespace flexcomp::cuda

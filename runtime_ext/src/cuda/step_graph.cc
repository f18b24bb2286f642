#include "cuda/step_graph.h"

#include <utility>

namespace flexcomp::cuda {

Refusal StepGraph::End() noexcept {
  Graph graph = nullptr;
  const auto end = [&](const Driver& driver) { return driver.StreamEndCapture(device_.compute(), &graph); };
  Refusal refusal = device_.Try("cuStreamEndCapture", end);
  if (refusal) {
    device_.Try("cuStreamEndCapture", end);  // otherwise the stream would run nothing any more
  } else {
    refusal = device_.Try("cuGraphInstantiate", [&](const Driver& driver) { return driver.GraphInstantiate(&exec_, graph, 0); });
    if (refusal) exec_ = nullptr;
  }
  if (graph != nullptr) device_.Try("cuGraphDestroy", [&](const Driver& driver) { return driver.GraphDestroy(graph); });
  return refusal;
}

void StepGraph::Clear() noexcept {
  if (const GraphExec exec = std::exchange(exec_, nullptr); exec != nullptr)
    device_.Try("cuGraphExecDestroy", [&](const Driver& driver) { return driver.GraphExecDestroy(exec); });
}

}  // namespace flexcomp::cuda

// What the steps of a plan use of the arena, but for weights.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "base/error.h"
#include "program/program.h"

namespace flexcomp {

// Bytes of the arena in use. Times are steps, half-open; the time after the last step is between two inferences.
struct Use {
  uint32_t begin, end;
  uint64_t low, high;
};
using Uses = std::pmr::vector<Use>;

inline void Add(Uses& uses, uint32_t begin, uint32_t end, int64_t at, uint64_t nbytes) {
  const auto low = static_cast<uint64_t>(at);
  if (nbytes > 0) uses.push_back({begin, end, low, low + nbytes});
}

template <typename... Parts>
void RequireOfPlan(bool holds, const Rung& rung, const Parts&... parts) {
  if (!holds) RaiseError("ArtifactError", "the plan for ", rung.budget, " bytes is wrong: ", parts...);
}

// Adds the uses by values and scratch, and checks that every value that is used has a place, and that what is read was written. `memory` may go afterwards. Throws
// ArtifactError.
void CheckSteps(const Rung& rung, const Program& program, std::span<const Step> steps, std::pmr::memory_resource* memory, Uses& uses);

}  // namespace flexcomp

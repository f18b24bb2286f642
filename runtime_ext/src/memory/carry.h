// Weights that stay in an arena when the plan changes: the new plan keeps some of those that the old one kept.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/arena.h"
#include "program/program.h"

namespace flexcomp {

// A plan whose arena begins at so many bytes of the memory.
struct PlacedRung {
  const Rung& rung;
  const Program& program;
  uint64_t at;
};

struct Carry {
  std::vector<Carried> moves;            // within the memory, one after the other; those that stay in place are left out
  std::vector<uint8_t> loads, layers;    // of the new plan, as Omitted: brought by nobody, for they are there
};

// All loads of `old` that stay are there. `states` are carried in any case, weights unless places are in each other's way.
// Equal bytes are those of one range of the file, as they are or prepared by one kernel: both programs have one weights file.
Carry FindCarry(const PlacedRung& old, const PlacedRung& next, const Carried& states);

}  // namespace flexcomp

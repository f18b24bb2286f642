// Bytes that stay in memory when the plan changes: states, and weights that the old plan kept and the new one keeps, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/arena.h"
#include "memory/sharing.h"
#include "program/program.h"

namespace flexcomp {

// A plan whose addresses from `border` on begin at so many bytes of the memory.
struct PlacedRung {
  const Rung& rung;
  const Program& program;
  uint64_t begin, border;
  const Sharing& sharing;

  uint64_t PlaceOf(uint64_t address) const noexcept { return begin + sharing.KeptOffset(address, border); }
};

// Weights of a plan that are in memory.
struct HeldWeights {
  const PlacedRung& plan;
  bool prepared;                   // otherwise weights that the second inference prepares are not there
  const std::vector<Carried>* left;  // only those bytes of the memory, by `from`, are; nullptr: everything is
};

struct Carry {
  std::vector<Carried> moves;          // within the memory, one after the other; also of bytes that stay in place
  std::vector<uint8_t> loads, layers;  // of the new plan, as Omitted: these weights are there
};

// `states` are carried in any case, weights unless places are in each other's way.
// Equal bytes are those of one range of the file, as they are or prepared by one kernel: both programs have one weights file.
Carry FindCarry(const HeldWeights& old, const PlacedRung& next, const Carried& states);

}  // namespace flexcomp

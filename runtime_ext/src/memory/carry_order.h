// The order of moves within one memory: none overwrites bytes that a later one needs.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/arena.h"

namespace flexcomp {

inline constexpr uint32_t kAlways = UINT32_MAX;

// Moves of a group are useful together; those of kAlways cannot be left out.
struct GroupMove {
  Carried carried;
  uint32_t group;
};

// Moves, also of bytes that stay in place, in such an order. Groups that are in each other's way are left out, and noted in `dropped`.
std::vector<Carried> OrderMoves(std::vector<GroupMove> moves, std::vector<uint8_t>& dropped);

}  // namespace flexcomp

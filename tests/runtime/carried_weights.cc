// What a change of plans moves, and in which order: the bytes are compared, not only the moves.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "memory/carry.h"

namespace {

using flexcomp::kPage;

// Keeps pages of the file, one load each, at these pages of the arena, after one page of working range.
struct Plan {
  flexcomp::Rung rung;
  flexcomp::Program program;

  explicit Plan(const std::vector<std::pair<uint64_t, uint64_t>>& kept) {
    rung.working = kPage;
    for (const auto& [from, to] : kept) {
      const auto load = static_cast<uint32_t>(rung.operations.size());
      rung.operations.push_back({.from = from * kPage, .to = to * kPage, .nbytes = kPage, .from_nbytes = kPage, .load = load});
      rung.runs.push_back({load, 1, 0});
    }
    rung.loads = static_cast<uint32_t>(kept.size());
    rung.tapes[flexcomp::Rung::kFill] = {0, rung.loads, 0, 0};
  }
};

// Page p of the file holds p; states hold 99.
void Try(const char* name, const std::vector<std::pair<uint64_t, uint64_t>>& old, const std::vector<std::pair<uint64_t, uint64_t>>& next,
         flexcomp::Carried states = {}, const std::vector<flexcomp::Carried>* left = nullptr) {
  const Plan before(old), after(next);
  std::map<uint64_t, uint64_t> memory;  // by page
  for (const auto& [from, to] : old) memory[to] = from;
  if (states.nbytes) memory[states.from / kPage] = 99;
  const flexcomp::Sharing nothing;
  const flexcomp::PlacedRung old_place{before.rung, before.program, 0, 0, nothing}, new_place{after.rung, after.program, 0, 0, nothing};
  const flexcomp::Carry carry = flexcomp::FindCarry({old_place, true, left}, new_place, states);
  size_t moves = 0;
  for (const flexcomp::Carried& one : carry.moves) {
    memory[one.to / kPage] = memory.at(one.from / kPage);
    moves += one.to != one.from;
  }
  std::printf("%s: %zu moves, there:", name, moves);
  for (size_t i = 0; i < next.size(); ++i) {
    if (!carry.loads[i]) continue;
    std::printf(" %d", static_cast<int>(next[i].first));
    if (memory.at(next[i].second) != next[i].first) std::printf(" WRONG");
  }
  if (states.nbytes && memory.at(states.to / kPage) != 99) std::printf(" WRONG states");
  std::printf("\n");
}

}  // namespace

int main() {
  Try("in place", {{0, 1}, {1, 2}}, {{0, 1}, {1, 2}});
  Try("upwards", {{0, 1}, {1, 2}, {2, 3}}, {{0, 2}, {1, 3}, {2, 4}});
  Try("downwards", {{0, 2}, {1, 3}, {2, 4}}, {{0, 1}, {1, 2}, {2, 3}});
  Try("swapped", {{0, 1}, {1, 2}, {2, 3}}, {{0, 2}, {1, 1}, {2, 3}});
  Try("in the way of states", {{0, 1}, {1, 2}}, {{0, 3}, {1, 2}}, {3 * kPage, 1 * kPage, kPage});
  Try("others", {{0, 1}, {1, 2}}, {{7, 1}, {1, 2}, {8, 3}});
  Try("nothing", {}, {{0, 1}});
  const std::vector<flexcomp::Carried> left = {{2 * kPage, 2 * kPage, kPage}};
  Try("what is left", {{0, 1}, {1, 2}, {2, 3}}, {{0, 1}, {1, 3}, {2, 2}}, {}, &left);
  std::vector<std::pair<uint64_t, uint64_t>> many, moved;
  for (uint64_t page = 0; page < 4000; ++page) many.push_back({page, 1 + page}), moved.push_back({page, 2 + page});
  const Plan before(many), after(moved);
  const flexcomp::Sharing nothing;
  const flexcomp::PlacedRung old_place{before.rung, before.program, 0, 0, nothing}, new_place{after.rung, after.program, 0, 0, nothing};
  std::printf("many: %zu moves\n", flexcomp::FindCarry({old_place, true, nullptr}, new_place, {}).moves.size());
}

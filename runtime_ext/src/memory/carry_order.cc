#include "memory/carry_order.h"

#include <algorithm>

namespace flexcomp {
namespace {

uint64_t SourceEnd(const GroupMove& move) { return move.carried.from + move.carried.nbytes; }

// Bytes that two moves need can be at one of their places only.
void DropSharedSources(std::vector<GroupMove>& moves, std::vector<uint8_t>& dropped) {
  std::ranges::sort(moves, {}, [](const GroupMove& move) { return move.carried.from; });
  const GroupMove* last = nullptr;
  for (const GroupMove& move : moves) {
    if (move.group != kAlways && dropped[move.group]) continue;
    if (last != nullptr && move.carried.from < SourceEnd(*last)) dropped[move.group != kAlways ? move.group : last->group] = 1;
    if (last == nullptr || move.group == kAlways || !dropped[move.group]) last = &move;
  }
  std::erase_if(moves, [&](const GroupMove& move) { return move.group != kAlways && dropped[move.group]; });
}

}  // namespace

std::vector<Carried> OrderMoves(std::vector<GroupMove> moves, std::vector<uint8_t>& dropped) {
  DropSharedSources(moves, dropped);
  // A move waits for those whose sources it overwrites.
  std::vector<uint32_t> awaited(moves.size()), ready;
  std::vector<std::vector<uint32_t>> waiting(moves.size()), of_group(dropped.size());
  for (uint32_t i = 0; i < moves.size(); ++i) {
    const Carried& one = moves[i].carried;
    if (moves[i].group != kAlways) of_group[moves[i].group].push_back(i);
    auto other = std::ranges::upper_bound(moves, one.to, {}, SourceEnd);
    for (; other != moves.end() && other->carried.from < one.to + one.nbytes; ++other) {
      if (&*other == &moves[i]) continue;
      waiting[other - moves.begin()].push_back(i);
      ++awaited[i];
    }
    if (awaited[i] == 0) ready.push_back(i);
  }
  std::vector<Carried> order;
  std::vector<uint8_t> over(moves.size());
  const auto end = [&](uint32_t move) {
    over[move] = 1;
    for (const uint32_t one : waiting[move])
      if (--awaited[one] == 0 && !over[one]) ready.push_back(one);
  };
  for (uint32_t next = 0;;) {
    while (!ready.empty()) {
      const uint32_t move = ready.back();
      ready.pop_back();
      if (over[move]) continue;
      order.push_back(moves[move].carried);
      end(move);
    }
    // Those that are left are in each other's way: the bytes of a group are read again.
    while (next < moves.size() && (over[next] || moves[next].group == kAlways)) ++next;
    if (next == moves.size()) return order;
    dropped[moves[next].group] = 1;
    for (const uint32_t move : of_group[moves[next].group])
      if (!over[move]) end(move);
  }
}

}  // namespace flexcomp

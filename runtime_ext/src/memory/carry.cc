#include "memory/carry.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "program/signature.h"

namespace flexcomp {
namespace {

constexpr uint32_t kNoLayer = UINT32_MAX;

// What a load leaves in the arena.
struct KeptBytes {
  std::string form;     // the kernel that prepares weights and the stored ones' place in the file; empty: bytes of the file
  uint64_t begin, end;  // bytes of these
  uint64_t at;
  uint32_t load, layer;  // kNoLayer: nothing is prepared
};

template <typename Function>
void ForTape(const Rung& rung, size_t tape, const Function& function) {
  for (uint32_t r = rung.tapes[tape].runs_begin; r < rung.tapes[tape].runs_end; ++r)
    for (uint32_t i = 0; i < rung.runs[r].count; ++i) function(rung.operations[rung.runs[r].operation + i]);
}

// Loads that do anything in later inferences are left out: stored weights that are prepared in each.
std::vector<KeptBytes> FindKept(const Rung& rung, const Program& program) {
  std::map<uint32_t, KeptBytes> by_load;
  ForTape(rung, Rung::kFill, [&](const Operation& one) {
    if (one.kind == Operation::Kind::kCopy) {
      by_load[one.load].at = one.to;
    } else if (one.kind == Operation::Kind::kRead) {
      by_load[one.load] = {"", one.from, one.from + one.nbytes, one.to, one.load, kNoLayer};
    } else {
      const Layer& layer = program.layers[one.layer];
      const uint64_t block = layer.weights->block_nbytes;
      by_load[one.load] = {PreparationSymbolOf(layer) + '@' + std::to_string(layer.weights->offset), one.first * block,
                           (uint64_t{one.first} + one.count) * block, one.to, one.load, one.layer};
    }
  });
  ForTape(rung, Rung::kSteady, [&](const Operation& one) { by_load.erase(one.load); });
  std::vector<KeptBytes> kept;
  for (auto& [load, one] : by_load)
    if (one.at >= rung.working) kept.push_back(std::move(one));
  return kept;
}

bool Overlap(uint64_t at, uint64_t nbytes, uint64_t other, uint64_t other_nbytes) { return at < other + other_nbytes && other < at + nbytes; }

// Loads that are carried together or not at all: a layer whose weights are prepared computes its first step from stored ones unless
// all prepared ones are there.
using CarryGroup = std::pair<uint32_t, uint32_t>;  // layer, or kNoLayer and a load

struct CarryMove {
  Carried carried;
  std::optional<CarryGroup> group;  // none: states
};

class CarryFinder {
 public:
  CarryFinder(const PlacedRung& old, const PlacedRung& next) : old_(old), next_(next) {
    for (KeptBytes& one : FindKept(old.rung, old.program)) there_[one.form].push_back(std::move(one));
    for (const KeptBytes& one : FindKept(next.rung, next.program)) Add(one);
    DropIncomplete();
    DropOverwritten();
  }

  std::vector<CarryMove> Moves() const {
    std::vector<CarryMove> moves;
    for (const auto& [group, one] : carried_)
      for (const Carried& move : one.moves) moves.push_back({move, group});
    return moves;
  }
  void Drop(const CarryGroup& group) { carried_.erase(group); }

  void Mark(Carry& carry) const {
    carry.loads.assign(next_.rung.loads, 0);
    carry.layers.assign(next_.program.layers.size(), 0);
    for (const auto& [group, one] : carried_) {
      for (const KeptBytes& kept : one.kept) carry.loads[kept.load] = 1;
      if (group.first != kNoLayer) carry.layers[group.first] = 1;
    }
  }

 private:
  struct Carriable {
    std::vector<KeptBytes> kept;
    std::vector<Carried> moves;
  };

  void Add(const KeptBytes& one) {
    const CarryGroup group = one.layer == kNoLayer ? CarryGroup{kNoLayer, one.load} : CarryGroup{one.layer, 0};
    std::vector<Carried> moves;
    const auto found = there_.find(one.form);
    for (uint64_t begin = one.begin; begin < one.end;) {
      if (found == there_.end()) return;
      const auto holds = [&](const KeptBytes& other) { return other.begin <= begin && begin < other.end; };
      const auto source = std::ranges::find_if(found->second, holds);
      if (source == found->second.end()) return;
      const uint64_t end = std::min(one.end, source->end);
      moves.push_back({old_.at + source->at + (begin - source->begin), next_.at + one.at + (begin - one.begin), end - begin});
      begin = end;
    }
    Carriable& carried = carried_[group];
    carried.kept.push_back(one);
    carried.moves.insert(carried.moves.end(), moves.begin(), moves.end());
  }

  void DropIncomplete() {
    std::map<uint32_t, std::vector<uint32_t>> loads;  // that prepare weights of a layer
    for (const Operation& one : next_.rung.operations)
      if (one.kind == Operation::Kind::kPrepare) loads[one.layer].push_back(one.load);
    std::erase_if(carried_, [&](auto& entry) {
      if (entry.first.first == kNoLayer) return false;
      return std::ranges::any_of(loads[entry.first.first], [&](uint32_t load) { return !Carries(entry.second, load); });
    });
  }

  // Other operations of the plan may use a place before its own weights come.
  void DropOverwritten() {
    for (bool changed = true; changed;) {
      changed = std::erase_if(carried_, [&](const auto& entry) {
        return std::ranges::any_of(next_.rung.operations, [&](const Operation& one) {
          if (one.to < next_.rung.working || Carries(entry.second, one.load)) return false;
          const auto meets = [&](const KeptBytes& kept) { return Overlap(one.to, one.nbytes, kept.at, kept.end - kept.begin); };
          return std::ranges::any_of(entry.second.kept, meets);
        });
      }) != 0;
    }
  }

  static bool Carries(const Carriable& carried, uint32_t load) { return std::ranges::find(carried.kept, load, &KeptBytes::load) != carried.kept.end(); }

  const PlacedRung old_, next_;
  std::map<std::string, std::vector<KeptBytes>> there_;
  std::map<CarryGroup, Carriable> carried_;
};

}  // namespace

Carry FindCarry(const PlacedRung& old, const PlacedRung& next, const Carried& states) {
  CarryFinder finder(old, next);
  std::vector<CarryMove> left = finder.Moves();
  if (states.nbytes > 0) left.push_back({states, {}});
  std::erase_if(left, [](const CarryMove& move) { return move.carried.from == move.carried.to; });
  Carry carry;
  while (!left.empty()) {
    const auto is_free = [&](const CarryMove& move) {
      return std::ranges::none_of(left, [&](const CarryMove& other) {
        return &other != &move && Overlap(move.carried.to, move.carried.nbytes, other.carried.from, other.carried.nbytes);
      });
    };
    if (const auto move = std::ranges::find_if(left, is_free); move != left.end()) {
      carry.moves.push_back(move->carried);
      left.erase(move);
      continue;
    }
    // They are in each other's way: some weights are read again.
    const CarryGroup group = *std::ranges::find_if(left, [](const CarryMove& move) { return move.group.has_value(); })->group;
    finder.Drop(group);
    std::erase_if(left, [&](const CarryMove& move) { return move.group == group; });
  }
  finder.Mark(carry);
  return carry;
}

}  // namespace flexcomp

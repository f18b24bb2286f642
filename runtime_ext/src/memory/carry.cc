#include "memory/carry.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "memory/carry_order.h"
#include "program/signature.h"

namespace flexcomp {
namespace {

constexpr uint32_t kNoLayer = UINT32_MAX;

// What a load leaves in the arena.
struct KeptBytes {
  std::string form;     // the kernel that prepares weights and the stored ones' place in the file; empty: bytes of the file
  uint64_t begin, end;  // bytes of these
  uint64_t at;          // address of the arena
  uint32_t load, layer;  // kNoLayer: nothing is prepared
  bool prepared_from = false;  // in every inference
};

// `prepared`: also those that the second inference prepares.
std::vector<KeptBytes> FindKept(const PlacedRung& plan, bool prepared) {
  const Rung& rung = plan.rung;
  std::map<uint32_t, KeptBytes> by_load;
  rung.ForOperations(Rung::kFill, [&](const Operation& one) {
    if (one.kind == Operation::Kind::kCopy) {
      by_load[one.load].at = one.to;
    } else if (one.kind == Operation::Kind::kRead) {
      by_load[one.load] = {"", one.from, one.from + one.nbytes, one.to, one.load, kNoLayer};
    } else {
      const Layer& layer = plan.program.layers[one.layer];
      const uint64_t block = layer.weights->block_nbytes;
      by_load[one.load] = {PreparationSymbolOf(layer) + '@' + std::to_string(layer.weights->offset), one.first * block,
                           (uint64_t{one.first} + one.count) * block, one.to, one.load, one.layer};
    }
  });
  rung.ForOperations(Rung::kSteady, [&](const Operation& one) {
    const auto found = by_load.find(one.load);
    if (found == by_load.end()) return;
    const bool takes = one.kind == Operation::Kind::kPrepare && one.to < rung.working && found->second.layer == kNoLayer;
    if (takes) found->second.prepared_from = true;
    else by_load.erase(found);
  });
  const auto writes_kept = [&](const Operation& one) {
    if (one.to >= rung.working) by_load.erase(one.load);
  };
  if (!prepared) rung.ForOperations(Rung::kSecond, writes_kept);
  std::vector<KeptBytes> kept;
  for (auto& [load, one] : by_load)
    if (one.at >= rung.working && !plan.sharing.omitted().load(load)) kept.push_back(std::move(one));
  return kept;
}

// Bytes of weights in memory, in one form, by their beginnings.
struct Source {
  uint64_t end, at;
};
using Sources = std::map<uint64_t, Source>;

std::map<std::string, Sources> FindSources(const HeldWeights& held) {
  std::map<std::string, Sources> found;
  for (const KeptBytes& one : FindKept(held.plan, held.prepared)) {
    const uint64_t at = held.plan.PlaceOf(one.at), end = at + (one.end - one.begin);
    Sources& sources = found[one.form];
    if (held.left == nullptr) {
      sources[one.begin] = {one.end, at};
      continue;
    }
    const auto first = std::ranges::upper_bound(*held.left, at, {}, [](const Carried& range) { return range.from + range.nbytes; });
    for (auto range = first; range != held.left->end() && range->from < end; ++range) {
      const uint64_t low = std::max(at, range->from), high = std::min(end, range->from + range->nbytes);
      sources[one.begin + (low - at)] = {one.begin + (high - at), low};
    }
  }
  return found;
}

class CarryFinder {
 public:
  CarryFinder(const HeldWeights& old, const PlacedRung& next) : next_(next), sources_(FindSources(old)) {
    for (const FirstStep& one : next.rung.first_steps) groups_.try_emplace({next.rung.steps[one.number].layer, 0});
    for (KeptBytes& one : FindKept(next, true)) Add(std::move(one));
    DropIncomplete();
    DropOverwritten();
  }

  Carry Find(const Carried& states) {
    std::vector<GroupMove> moves;
    uint32_t number = 0;
    for (const auto& [key, group] : groups_) {
      for (const Carried& move : group.moves) moves.push_back({move, number});
      ++number;
    }
    if (states.nbytes > 0) moves.push_back({states, kAlways});
    std::vector<uint8_t> dropped(groups_.size());
    Carry carry{OrderMoves(std::move(moves), dropped), std::vector<uint8_t>(next_.rung.loads), std::vector<uint8_t>(next_.program.layers.size())};
    number = 0;
    for (const auto& [key, group] : groups_) {
      if (dropped[number++] || group.kept.empty()) continue;
      for (const KeptBytes& one : group.kept) carry.loads[one.load] = one.prepared_from ? Omitted::kReads : Omitted::kAll;
      if (key.first != kNoLayer) carry.layers[key.first] = 1;
    }
    return carry;
  }

 private:
  // Loads that are carried together or not at all: a layer that the first inference computes from stored weights does so unless all
  // prepared ones are there.
  using Key = std::pair<uint32_t, uint32_t>;  // a layer, or kNoLayer and a load
  struct Group {
    std::vector<KeptBytes> kept;
    std::vector<Carried> moves;
  };

  void Add(KeptBytes one) {
    const auto sources = sources_.find(one.form);
    std::vector<Carried> moves;
    for (uint64_t begin = one.begin; begin < one.end;) {
      if (sources == sources_.end()) return;
      auto source = sources->second.upper_bound(begin);
      if (source == sources->second.begin() || (--source)->second.end <= begin) return;
      const uint64_t end = std::min(one.end, source->second.end);
      moves.push_back({source->second.at + (begin - source->first), next_.PlaceOf(one.at) + (begin - one.begin), end - begin});
      begin = end;
    }
    const bool together = one.layer != kNoLayer && groups_.contains({one.layer, 0});
    Group& group = groups_[together ? Key{one.layer, 0} : Key{kNoLayer, one.load}];
    group.moves.insert(group.moves.end(), moves.begin(), moves.end());
    group.kept.push_back(std::move(one));
  }

  void DropIncomplete() {
    for (const Operation& one : next_.rung.operations) {
      if (one.kind != Operation::Kind::kPrepare) continue;
      const auto group = groups_.find({one.layer, 0});
      if (group != groups_.end() && !Carries(group->second, one.load)) group->second = {};
    }
  }

  // Other operations of the plan may use a place before its own weights come.
  void DropOverwritten() {
    struct Write {
      uint64_t begin, end, until;  // until: the last end so far
      uint32_t load;
    };
    std::vector<Write> writes;
    for (const Operation& one : next_.rung.operations)
      if (one.to >= next_.rung.working) writes.push_back({one.to, one.to + one.nbytes, 0, one.load});
    std::ranges::sort(writes, {}, &Write::begin);
    uint64_t until = 0;
    for (Write& one : writes) one.until = until = std::max(until, one.end);
    const auto is_overwritten = [&](const Group& group, const KeptBytes& kept) {
      auto write = std::ranges::lower_bound(writes, kept.at + (kept.end - kept.begin), {}, &Write::begin);
      while (write != writes.begin() && (--write)->until > kept.at)
        if (write->end > kept.at && !Carries(group, write->load)) return true;
      return false;
    };
    for (auto& [key, group] : groups_) {
      const auto goes = [&, &group = group](const KeptBytes& kept) { return is_overwritten(group, kept); };
      if (std::ranges::any_of(group.kept, goes)) group = {};
    }
  }

  static bool Carries(const Group& group, uint32_t load) { return std::ranges::find(group.kept, load, &KeptBytes::load) != group.kept.end(); }

  const PlacedRung& next_;
  const std::map<std::string, Sources> sources_;
  std::map<Key, Group> groups_;
};

}  // namespace

Carry FindCarry(const HeldWeights& old, const PlacedRung& next, const Carried& states) { return CarryFinder(old, next).Find(states); }

}  // namespace flexcomp

// The contents of the arena over time, for each tape of a rung; the rules of flexcomp/plan/check.py, and that all bytes read were
// written. Times are steps, half-open; the time after the last step is between two inferences.
//
//   values, scratch: step_check.cc
//   weights        from the step after which their operation may begin to the last step that uses them, in any layer; ahead: from
//                  there to the end of the tape before, and from the start to that step; in the kept range: always
//   stored weights that are prepared from: from the step after which their read may begin to the step that the preparation is complete
//                  before. Such reads may share a place: the loader sees to that.
//
// Contents that are live at the same time must not share a byte, except a result and the operand that it overwrites. A tape
// starts from contents of the kept range, and leaves others: all tapes that lead to one tape leave the same.
#include <algorithm>
#include <map>
#include <memory_resource>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "program/plan_checker.h"
#include "program/program.h"
#include "program/step_check.h"
#include "program/tapes.h"

namespace flexcomp {
namespace {

constexpr size_t kMostItems = 3;  // that an operation adds to the arena: its own, and the rests of another before and after it

// Weights in the arena.
struct Item {
  uint64_t low, high;
  uint64_t source;  // of stored weights: the byte of the data section
  const Layer* made;
  uint32_t first;  // of prepared weights: the block
  uint32_t begin = 0, end = 0;  // until the last step that uses the weights; 0: none
  uint32_t load = 0;
  uint32_t taken = 0;  // copied, or prepared from, before this step begins
  bool own = false;    // of an operation of the tape that is checked; otherwise from before, or ahead of the next tape
};
using Items = std::pmr::vector<Item>;  // by their addresses

// The weights over time.
class TapeCheck {
 public:
  // `uses`: by the values and scratch of its steps.
  TapeCheck(const Rung& rung, const Program& program, const Tape& tape, const Uses& uses, std::pmr::memory_resource* memory)
      : rung_(rung), program_(program), tape_(tape), memory_(memory), steps_(static_cast<uint32_t>(tape.steps.size())),
        uses_(uses.begin(), uses.end(), memory), items_(memory), taken_(memory) {}

  // From the contents of the kept range, `before`, to those that the tape leaves; `next` may begin ahead.
  void Check(const Items& before, const Tape& next, Items& left) {
    for (const Item& item : before) items_.emplace(item.low, item);
    FollowTape(next, left);
    CheckOverlaps();
  }

 private:
  const Layer& LayerOf(uint32_t step) const { return program_.layers[tape_.steps[step].layer]; }

  // Follows the certain contents of the arena at the start of each step, and so finds the weights of each.
  void FollowTape(const Tape& next, Items& left) {
    uint32_t done = 0;
    const auto follow = [&](uint32_t end, uint32_t computed) {
      for (; done < end; ++done) {
        const Operation& operation = tape_.operations[done];
        const uint32_t begin = static_cast<uint32_t>(std::max(operation.after, 0));
        RequireOfPlan(begin <= computed, rung_, "load ", operation.load, " and step ", computed, " of budget ", rung_.budget, " wait for each other");
        Follow(operation, begin, computed + 1, true);
      }
    };
    for (uint32_t i = 0; i < steps_; ++i) {
      follow(tape_.need[i], i);
      if (LayerOf(i).weights) UseWeights(i, *LayerOf(i).weights);
    }
    follow(static_cast<uint32_t>(tape_.operations.size()), steps_);
    left.clear();
    for (const auto& [low, item] : items_)
      if (low >= rung_.working) left.push_back({item.low, item.high, item.source, item.made, item.first});
    for (const Operation& operation : next.operations)
      if (operation.ahead()) Follow(operation, operation.StepsBefore(steps_), steps_ + 1, false);
    for (const auto& [low, item] : items_) {
      End(item);
      if (low >= rung_.working) Add(uses_, 0, steps_ + 1, item.low, item.high - item.low);
    }
    for (auto& [low, uses] : taken_) AddTogether(uses);
  }

  // `begin`: the steps after which the operation begins; complete before step `end`.
  void Follow(const Operation& operation, uint32_t begin, uint32_t end, bool own) {
    Item item{operation.to, operation.to + operation.nbytes, operation.from, nullptr, 0, begin, 0, operation.load, 0, own};
    if (operation.kind != Operation::Kind::kRead) {
      Item& from = Holding(operation);
      from.taken = end;
      item.source = from.source + (operation.from - from.low);
    }
    if (operation.kind == Operation::Kind::kPrepare) {
      item.made = &program_.layers[operation.layer];
      item.first = operation.first;
      RequireOfPlan(item.source == StoredRange(*item.made, item.first, operation.count).begin, rung_, "load ", operation.load,
                    " is prepared from other weights");
      item.source = 0;
    }
    Clear(item, operation.after == Operation::kAnytime);
    items_.emplace(item.low, item);
  }

  // The stored weights that an operation takes.
  Item& Holding(const Operation& operation) {
    auto found = items_.upper_bound(operation.from);
    const bool holds = found != items_.begin() && (--found)->second.made == nullptr && operation.from < found->second.high &&
                       operation.from_nbytes <= found->second.high - operation.from;
    RequireOfPlan(holds, rung_, "load ", operation.load, " is prepared from bytes that no load brings");
    return found->second;
  }

  // Operations begin in order, but for reads that begin at any time: these need a place where nothing was.
  void Clear(const Item& item, bool anytime) {
    auto other = items_.upper_bound(item.low);
    if (other != items_.begin() && std::prev(other)->second.high > item.low) --other;
    while (other != items_.end() && other->first < item.high) {
      const Item over = other->second;
      RequireOfPlan(!anytime && over.end <= item.begin, rung_, "bytes [", item.low, ", ", item.high, ") are in use when step ", item.begin,
                    " begins, which needs them too");
      RequireOfPlan(over.made == nullptr || over.low < rung_.working, rung_, "load ", item.load, " is written over weights that stay");
      RequireOfPlan(steps_ > 0 || !over.own || over.taken > 0, rung_, "load ", over.load, " is written over before it is used");
      other = items_.erase(other);
      End(over);
      if (over.made != nullptr || over.low < rung_.working) continue;
      // The rest of stored weights that stay may be prepared later.
      if (over.low < item.low) {
        Item left = over;
        left.high = item.low;
        items_.emplace(left.low, left);
      }
      if (over.high > item.high) {
        Item right = over;
        right.source += item.high - over.low;
        right.low = item.high;
        items_.emplace(right.low, right);
      }
    }
  }

  // What was, or will be, in use. The kept range is always in use, wherever there is something at the end.
  void End(const Item& item) {
    RequireOfPlan(!item.own || steps_ == 0 || item.end > 0 || item.taken > 0, rung_, "no step uses load ", item.load);
    if (item.low >= rung_.working) return;
    const uint32_t end = item.own ? std::max(item.end, item.taken) : steps_ + 1;
    if (item.taken > 0) {
      taken_[item.low].push_back({item.begin, end, item.low, item.high});
    } else {
      Add(uses_, item.begin, end, item.low, item.high - item.low);
    }
  }

  void UseWeights(uint32_t i, const LayerWeights& weights) {
    const Step& step = tape_.steps[i];
    // One load, or where weights are prepared several.
    const uint64_t end = static_cast<uint64_t>(step.weights_at) + step.count * weights.block_nbytes;
    for (uint64_t at = static_cast<uint64_t>(step.weights_at); at < end;) {
      auto found = items_.upper_bound(at);
      const bool holds = found != items_.begin() && (--found)->second.high > at && Holds(found->second, i, weights, at);
      RequireOfPlan(holds && (weights.preparation || end <= found->second.high), rung_, "no load that step ", i,
                    " waits for brings its weights (layer ", LayerOf(i).name, ")");
      found->second.end = i + 1;
      at = found->second.high;
    }
  }

  // Whether these are the weights of a step that lie from `at` on, as far as they reach.
  bool Holds(const Item& item, uint32_t i, const LayerWeights& weights, uint64_t at) const {
    const Step& step = tape_.steps[i];
    if (weights.preparation.has_value() != (item.made != nullptr)) return false;
    const uint64_t in_step = at - static_cast<uint64_t>(step.weights_at), in_item = at - item.low;
    if (item.made == nullptr) return item.source + in_item == weights.offset + step.first * weights.block_nbytes + in_step;
    return MakeTheSame(*item.made, LayerOf(i)) &&
           static_cast<int64_t>(in_step) - static_cast<int64_t>(in_item) ==
               (int64_t{item.first} - step.first) * static_cast<int64_t>(weights.block_nbytes);
  }

  // Whether two layers, both with weights that are prepared, have the same: made by one kernel of the same bytes.
  static bool MakeTheSame(const Layer& one, const Layer& two) {
    if (&one == &two) return true;
    const Preparation &made = *one.weights->preparation, &of = *two.weights->preparation;
    return one.weights->offset == two.weights->offset && one.weights->blocks == two.weights->blocks &&
           one.weights->block_nbytes == two.weights->block_nbytes && made.kernel == of.kernel && made.channels == of.channels &&
           made.stored == of.stored && PanelOf(one)->type == PanelOf(two)->type;
  }

  // Loads that are read to the same place and prepared there share that place: it is in use whenever one of them may be there.
  void AddTogether(Uses& uses) {
    std::ranges::sort(uses, {}, &Use::begin);
    Use together = uses.front();
    for (const Use& use : uses) together.high = std::max(together.high, use.high);
    for (const Use& use : uses) {
      if (use.begin > together.end) {
        uses_.push_back(together);
        together.begin = use.begin;
      }
      together.end = std::max(together.end, use.end);
    }
    uses_.push_back(together);
  }

  // Goes through the steps with the live uses by address: their ranges are disjoint, so that only neighbours can meet.
  void CheckOverlaps() {
    std::pmr::vector<uint32_t> by_end(uses_.size(), memory_);
    for (uint32_t i = 0; i < by_end.size(); ++i) by_end[i] = i;
    std::ranges::sort(uses_, {}, &Use::begin);
    std::ranges::sort(by_end, {}, [this](uint32_t i) { return uses_[i].end; });
    std::pmr::map<uint64_t, uint64_t> live(memory_);  // low → high
    auto over = by_end.begin();
    for (const Use& use : uses_) {
      for (; over != by_end.end() && uses_[*over].end <= use.begin; ++over) live.erase(uses_[*over].low);
      const auto behind = live.upper_bound(use.low);
      const bool free = (behind == live.end() || behind->first >= use.high) &&
                        (behind == live.begin() || std::prev(behind)->second <= use.low);
      RequireOfPlan(free, rung_, "bytes [", use.low, ", ", use.high, ") are in use when step ", use.begin, " begins, which needs them too");
      live.emplace_hint(behind, use.low, use.high);
    }
  }

  const Rung& rung_;
  const Program& program_;
  const Tape& tape_;
  std::pmr::memory_resource* const memory_;
  const uint32_t steps_;
  Uses uses_;
  std::pmr::map<uint64_t, Item> items_;  // the contents of the arena, by their start
  std::pmr::map<uint64_t, Uses> taken_;  // of stored weights that are prepared, by their start
};

// Memory for the checks of a rung's tapes, one after the other.
struct Room {
  std::byte* at;
  size_t kept, all;  // bytes for contents between tapes, and with those for the check of a tape
};

// Whether operations that write to what stays are the same in both. Of these a loader that gives up operations ahead skips as many
// as are complete.
bool DoTheSameToWhatStays(const Tape& one, const Tape& two, const Rung& rung) {
  const auto facts = [](const Operation& of) { return std::tuple(of.kind, of.from, of.to, of.nbytes, of.layer, of.first, of.count); };
  auto other = two.operations.begin();
  const auto skip = [&] { other = std::find_if(other, two.operations.end(), [&](const Operation& of) { return of.to >= rung.working; }); };
  for (const Operation& operation : one.operations) {
    if (operation.to < rung.working) continue;
    skip();
    if (other == two.operations.end() || facts(operation) != facts(*other)) return false;
    ++other;
  }
  skip();
  return other == two.operations.end();
}

// All tapes of a rung, and the head's figures, which people and servers read.
void CheckTapes(const RungHead& head, const Rung& rung, const Program& program, const Tapes& tapes, const Room& room) {
  std::pmr::monotonic_buffer_resource kept(room.at, room.kept);
  Items none(&kept), first(&kept), filled(&kept), left(&kept);
  for (Items* items : {&first, &filled, &left}) items->reserve(kMostItems * rung.operations.size());
  Uses unused(&kept), uses(&kept);
  uses.reserve(program.values.size() + rung.steps.size());
  const auto check_steps = [&](std::span<const Step> steps) {
    std::pmr::monotonic_buffer_resource memory(room.at + room.kept, room.all - room.kept);
    uses.clear();
    CheckSteps(rung, program, steps, &memory, uses);
  };
  const auto check = [&](const Tape& tape, const Items& before, const Tape& next, Items& after) {
    std::pmr::monotonic_buffer_resource memory(room.at + room.kept, room.all - room.kept);
    TapeCheck(rung, program, tape, tape.steps.empty() ? unused : uses, &memory).Check(before, next, after);
  };
  const auto leads = [&](const Items& items) {
    const auto same = [](const Item& one, const Item& two) {
      return one.low == two.low && one.high == two.high && one.source == two.source && one.made == two.made && one.first == two.first;
    };
    RequireOfPlan(std::ranges::equal(items, filled, same), rung, "different weights stay after different inferences");
  };
  RequireOfPlan(DoTheSameToWhatStays(tapes.second, tapes.settle, rung), rung, "its second inference prepares other weights than filling does");
  RequireOfPlan(DoTheSameToWhatStays(tapes.steady, {}, rung), rung, "every inference writes to what stays");
  const bool cold = !rung.first_steps.empty();
  check(tapes.fill, none, tapes.steady, filled);
  check_steps(tapes.first.steps);
  check(tapes.first, none, cold ? tapes.second : tapes.steady, first);
  if (cold) {
    check_steps(tapes.steady.steps);
  } else {
    leads(first);
  }
  for (const Tape* tape : {&tapes.second, &tapes.settle}) {
    if (!cold) break;
    check(*tape, first, tapes.steady, left);
    leads(left);
  }
  check(tapes.steady, filled, tapes.steady, left);
  leads(left);

  uint64_t pinned = 0, streamed = 0;
  for (const Item& item : filled) pinned += item.high - item.low;
  for (const Operation& operation : tapes.steady.operations)
    if (operation.kind == Operation::Kind::kRead) streamed += operation.nbytes;
  RequireOfPlan(head.pinned == pinned, rung, "it is said to keep ", head.pinned, " bytes of weights and keeps ", pinned);
  RequireOfPlan(head.streamed == streamed, rung, "it is said to read ", head.streamed, " bytes in an inference and reads ", streamed);
}

}  // namespace

void CheckPlans(const Program& program) {
  TapeRoom tapes(program);
  for (const RungHead& head : program.rungs) {
    Rung rung;
    ReadPlan(head, program, rung);
    for (const bool queued : {false, true}) {
      tapes.Open(rung, queued);
      CheckTapes(head, rung, program, tapes.tapes(), {});
    }
  }
}

PlanChecker::PlanChecker(const Program& program, bool queued)
    : program_(program), queued_(queued), checked_(program.rungs.size(), false), tapes_(program) {
  // A node of a map, or a place in a vector that grows, for all that a check notes of a step's arguments, a step and a load.
  constexpr size_t kNode = 128;
  const Most most = MostOf(program);
  const size_t args = MostArgs(program, [](const Arg&) { return true; });
  kept_nbytes_ = 3 * kMostItems * (size_t{most.operations} + 1) * sizeof(Item) + (program.values.size() + size_t{most.steps} + 1) * sizeof(Use);
  room_nbytes_ = kept_nbytes_ + kNode * (9 * (size_t{most.steps} + kMostItems * size_t{most.operations}) + 2 * program.values.size() +
                                         3 * program.states.size() + 3 * args * (size_t{most.steps} + most.first_steps));
  room_.reset(new std::byte[room_nbytes_]);  // not initialised: memory that no check uses costs nothing
}

void PlanChecker::Check(size_t rung) {
  const std::lock_guard lock(mutex_);
  if (checked_[rung]) return;
  const Rung& plan = program_.Decode(rung);
  tapes_.Open(plan, queued_);
  CheckTapes(program_.rungs[rung], plan, program_, tapes_.tapes(), {room_.get(), kept_nbytes_, room_nbytes_});
  checked_[rung] = true;
}

}  // namespace flexcomp

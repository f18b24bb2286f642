// The contents of the arena over time, for one rung; the rules of flexcomp/plan/check.py, and that all bytes read were
// written. Times are steps, half-open; the time after the last step is between two inferences.
//
//   value          from the first step of the first layer that writes the value, or from the start for an input, to the last
//                  step of the last layer that uses the value; an output to the end of the time between inferences, and
//                  so the arguments of a layer that exchanges, which may have to be called again
//   scratch        its step
//   load           from the step after which the load may start to the last step that uses its weights, in any layer;
//                  pinned: always
//   read ahead     from the start to the last step that uses the load, and again from where the load may start to the end
//   read bytes     of loads that prepare weights: from the step after which the load may start to the first step that uses
//                  the prepared weights. Such loads may share a place: the loader sees to that. Kept bytes: always, and
//                  once for loads that read the same.
//
// Contents that are live at the same time must not share a byte, except a result and the operand that it overwrites.
#include <algorithm>
#include <map>
#include <memory_resource>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/plan_checker.h"
#include "program/program.h"

namespace flexcomp {
namespace {

template <typename... Parts>
void Require(bool holds, const Rung& rung, const Parts&... parts) {
  if (!holds) RaiseError("ArtifactError", "the plan for ", rung.budget, " bytes is wrong: ", parts...);
}

// A layer from its first block to its last.
struct Run {
  uint32_t layer, begin, end;  // steps
};

struct Life {
  uint32_t begin = UINT32_MAX, end = 0;
};

// Bytes of the arena in use.
struct Use {
  uint32_t begin, end;
  uint64_t low, high;
};

// How much of a value is written: pieces in order, each with the part of its bytes. Several layers may write parts of
// the same range, such as channels of every pixel.
class Coverage {
 public:
  using allocator_type = std::pmr::polymorphic_allocator<>;
  explicit Coverage(const allocator_type& memory) : pieces_(memory) {}
  Coverage(Coverage&& other, const allocator_type& memory) : pieces_(std::move(other.pieces_), memory) {}

  // False: more is written than there is.
  bool Write(uint64_t low, uint64_t high, double part) {
    Split(low);
    Split(high);
    uint64_t at = low;
    for (auto piece = pieces_.lower_bound(low); at < high; ++piece) {
      if (piece == pieces_.end() || piece->first > at) {
        const uint64_t end = piece == pieces_.end() ? high : std::min(high, piece->first);
        piece = pieces_.emplace_hint(piece, at, Piece{end, 0});
      }
      Piece& written = piece->second;
      written.part = part == 1 ? 1 : written.part + part;
      if (written.part > 1 + kSlack) return false;
      at = written.end;
    }
    return true;
  }
  bool Holds(uint64_t low, uint64_t high) const {
    auto piece = pieces_.upper_bound(low);
    if (piece == pieces_.begin()) return false;
    for (--piece; piece != pieces_.end() && piece->first <= low && piece->second.part >= 1 - kSlack; ++piece) {
      low = piece->second.end;
      if (low >= high) return true;
    }
    return false;
  }

 private:
  static constexpr double kSlack = 1e-6;  // parts are added up
  struct Piece {
    uint64_t end;
    double part;
  };
  void Split(uint64_t at) {
    auto piece = pieces_.upper_bound(at);
    if (piece == pieces_.begin()) return;
    --piece;
    if (piece->first == at || piece->second.end <= at) return;
    pieces_.emplace(at, piece->second);
    piece->second.end = at;
  }

  std::pmr::map<uint64_t, Piece> pieces_;  // by their start
};

class PlanCheck {
 public:
  PlanCheck(const Rung& rung, const Program& program, std::pmr::memory_resource* memory)
      : rung_(rung), program_(program), memory_(memory), steps_(static_cast<uint32_t>(rung.steps.size())), runs_(memory),
        lives_(program.values.size(), memory), uses_(memory) {}

  void Check() {
    FindRuns();
    CheckContents();
    FindLives();
    for (const Run& run : runs_) ReplaceOperand(run);
    for (size_t v = 0; v < lives_.size(); ++v)
      if (lives_[v].end > 0) Add(lives_[v].begin, lives_[v].end, rung_.value_at[v], program_.values[v].nbytes);
    for (uint32_t i = 0; i < steps_; ++i)
      if (const uint64_t nbytes = LayerOf(i).scratch_nbytes) Add(i, i + 1, rung_.steps[i].scratch_at, nbytes);
    AddLoads();
    CheckOverlaps();
  }
  // Of a plan that was checked: bytes that loads keep which others before them keep already.
  uint64_t kept_again() const { return kept_again_; }

 private:
  const Layer& LayerOf(uint32_t step) const { return program_.layers[rung_.steps[step].layer]; }

  // Every layer is computed from its first block to its last, in order and with no other in between.
  void FindRuns() {
    uint32_t done = 0, blocks = 0;
    for (uint32_t i = 0; i < steps_; ++i) {
      const Step& step = rung_.steps[i];
      if (done == blocks) {
        runs_.push_back({step.layer, i, i});
        done = 0;
        blocks = LayerOf(i).weights ? LayerOf(i).weights->blocks : 1;
      }
      Require(step.layer == runs_.back().layer && step.first == done, rung_, "step ", i, " comes before blocks from ", done,
              " of layer ", program_.layers[runs_.back().layer].name);
      done += step.count;
      runs_.back().end = i + 1;
    }
    Require(done == blocks, rung_, "the last layer lacks blocks from ", done, " on");
  }

  // Whatever is read has been written, and inputs are not.
  void CheckContents() const {
    std::pmr::vector<Coverage> written(program_.values.size(), memory_);
    std::pmr::vector<bool> given(program_.values.size(), false, memory_);
    for (const Port& port : program_.inputs) {
      given[port.value] = true;
      written[port.value].Write(0, port.type.nbytes, 1);
    }
    for (const State& state : program_.states) {
      given[state.value] = true;
      written[state.value].Write(state.offset, state.offset + state.type.nbytes, 1);
    }
    for (const Run& run : runs_) {
      const Layer& layer = program_.layers[run.layer];
      for (const Arg& arg : layer.args)
        Require(arg.kind != ArgKind::kValue || arg.written > 0 ||
                    written[arg.value].Holds(arg.offset, arg.offset + arg.type.nbytes),
                rung_, "layer ", layer.name, " reads of value ", program_.values[arg.value].name, " what no layer has written");
      for (const Arg& arg : layer.args) {
        Require(!arg.exchanged || !given[arg.value] || IsState(arg.value), rung_, "layer ", layer.name, " exchanges bytes of an input");
        if (arg.kind != ArgKind::kValue || arg.written == 0) continue;
        const double part = static_cast<double>(arg.written) / static_cast<double>(arg.type.nbytes);
        Require(!given[arg.value] && written[arg.value].Write(arg.offset, arg.offset + arg.type.nbytes, part), rung_, "layer ",
                layer.name, " writes to value ", program_.values[arg.value].name, ", which is an input or complete");
      }
    }
    for (const Port& port : program_.outputs)
      Require(written[port.value].Holds(0, port.type.nbytes), rung_, "output ", port.name, " is not written");
    for (const State& state : program_.states)
      Require(state.exchanged() ? Exchanges(state) : written[state.result].Holds(0, state.type.nbytes), rung_, "what state ",
              state.input, " becomes is not written");
  }

  bool IsState(uint32_t value) const { return !program_.states.empty() && program_.states.front().value == value; }

  // Whether a layer exchanges the state; each such layer exchanges bytes of just one state (checked in
  // `program/check.cc`).
  bool Exchanges(const State& state) const {
    return std::ranges::any_of(runs_, [&](const Run& run) {
      return std::ranges::any_of(program_.layers[run.layer].args, [&](const Arg& arg) {
        return arg.exchanged && arg.value == state.value && arg.offset == state.offset;
      });
    });
  }

  void FindLives() {
    const auto live = [this](uint32_t value, uint32_t begin, uint32_t end) {
      lives_[value] = {std::min(lives_[value].begin, begin), std::max(lives_[value].end, end)};
    };
    for (const Port& port : program_.inputs) live(port.value, 0, 1);
    for (const State& state : program_.states) live(state.value, 0, steps_ + 1);
    for (const Run& run : runs_)
      for (const Arg& arg : program_.layers[run.layer].args)
        if (arg.kind == ArgKind::kValue) live(arg.value, run.begin, program_.layers[run.layer].exchanges() ? steps_ + 1 : run.end);
    for (const Port& port : program_.outputs) live(port.value, lives_[port.value].begin, steps_ + 1);
    for (const State& state : program_.states) live(state.result, lives_[state.result].begin, steps_ + 1);
  }

  // Where a result takes the place of an operand that the kernel may overwrite, and that ends there, the operand's life
  // is over when the layer begins: the result protects its bytes from then on.
  void ReplaceOperand(const Run& run) {
    const Layer& layer = program_.layers[run.layer];
    const Arg* result = nullptr;
    for (const Arg& arg : layer.args) {
      if (arg.kind != ArgKind::kValue || arg.written == 0) continue;
      if (result != nullptr) return;
      result = &arg;
    }
    if (result == nullptr || lives_[result->value].begin != run.begin) return;
    for (const Arg& operand : layer.args) {
      if (operand.kind != ArgKind::kValue || !operand.over || operand.value == result->value) continue;
      const auto uses = std::ranges::count_if(layer.args, [&](const Arg& arg) {
        return arg.kind == ArgKind::kValue && arg.value == operand.value;
      });
      Life& life = lives_[operand.value];
      if (uses == 1 && life.begin < run.begin && life.end == run.end && operand.offset == 0 && result->offset == 0 &&
          operand.type.nbytes == result->type.nbytes && rung_.value_at[operand.value] == rung_.value_at[result->value] &&
          program_.values[operand.value].nbytes == program_.values[result->value].nbytes)
        life.end = run.begin;
    }
  }

  // Follows the certain contents of the arena at the start of each step, and so finds the load of each step's weights.
  void AddLoads() {
    std::pmr::map<uint64_t, uint32_t> placed(memory_);  // by their ends: the loads that lie in the arena whole
    std::pmr::vector<uint32_t> first(rung_.loads.size(), 0, memory_), last(rung_.loads.size(), 0, memory_);  // ends of the steps that use them
    uint32_t loaded = 0;
    for (uint32_t i = 0; i < steps_; ++i) {
      const Step& step = rung_.steps[i];
      for (; loaded < step.need; ++loaded) {
        if (rung_.loads[loaded].nbytes == 0) continue;  // of a first inference
        const Use brought = Brought(rung_.loads[loaded]);
        auto other = placed.upper_bound(brought.low);
        while (other != placed.end() && Brought(rung_.loads[other->second]).low < brought.high) other = placed.erase(other);
        placed.emplace(brought.high, loaded);
      }
      if (!LayerOf(i).weights) continue;
      const LayerWeights& weights = *LayerOf(i).weights;
      // One load, or where weights are prepared several.
      const uint64_t end = static_cast<uint64_t>(step.weights_at) + step.count * weights.block_nbytes;
      for (uint64_t at = static_cast<uint64_t>(step.weights_at); at < end;) {
        const auto found = placed.upper_bound(at);
        const bool brings = found != placed.end() && Brings(rung_.loads[found->second], step, weights, at);
        Require(brings && (weights.preparation || end <= found->first), rung_, "no load that step ", i,
                " waits for brings its weights (layer ", LayerOf(i).name, ")");
        last[found->second] = i + 1;
        if (first[found->second] == 0) first[found->second] = i + 1;
        at = found->first;
      }
    }
    AddRead(first);
    for (uint32_t j = 0; j < rung_.loads.size(); ++j) {
      const Load& load = rung_.loads[j];
      if (load.nbytes == 0) continue;
      Require(last[j] > 0, rung_, "no step uses load ", j);
      const Use brought = Brought(load);
      const uint64_t nbytes = brought.high - brought.low;
      if (load.pinned) {
        Add(0, steps_ + 1, brought.low, nbytes);
      } else if (load.ahead) {
        Require(load.after >= last[j], rung_, "load ", j, " is read ahead while step ", last[j] - 1, " uses it");
        Add(0, last[j], brought.low, nbytes);
        Add(load.after, steps_ + 1, brought.low, nbytes);
      } else {
        Add(load.after, last[j], brought.low, nbytes);
      }
    }
  }

  // The place of a load's result.
  Use Brought(const Load& load) const {
    if (!load.prepared) return {0, 0, load.target, load.target + load.nbytes};
    const Prepared& made = *load.prepared;
    return {0, 0, made.at, made.at + made.count * program_.layers[made.layer].weights->block_nbytes};
  }

  // Whether the load brings the weights of a step that lie from `at` on, as far as the load reaches.
  bool Brings(const Load& load, const Step& step, const LayerWeights& weights, uint64_t at) const {
    if (at < Brought(load).low || weights.preparation.has_value() != load.prepared.has_value()) return false;
    const uint64_t in_step = at - static_cast<uint64_t>(step.weights_at);
    if (load.prepared) {
      const int64_t blocks = int64_t{load.prepared->first} - step.first;
      return MakeTheSame(load.prepared->layer, step.layer) && static_cast<int64_t>(in_step) - static_cast<int64_t>(at - load.prepared->at) ==
                                                       blocks * static_cast<int64_t>(weights.block_nbytes);
    }
    const uint64_t begin = weights.offset + step.first * weights.block_nbytes + in_step;
    return begin >= load.source && begin - load.source == at - load.target;
  }

  // Whether two layers, both with weights that are prepared, have the same: made by one kernel of the same bytes.
  bool MakeTheSame(uint32_t layer, uint32_t other) const {
    if (layer == other) return true;
    const Layer &one = program_.layers[layer], &two = program_.layers[other];
    const Preparation &made = *one.weights->preparation, &of = *two.weights->preparation;
    return one.weights->offset == two.weights->offset && one.weights->blocks == two.weights->blocks &&
           one.weights->block_nbytes == two.weights->block_nbytes && made.kernel == of.kernel && made.channels == of.channels &&
           Alike(made.stored, of.stored) && Alike(PanelOf(one)->type, PanelOf(two)->type);
  }

  static bool Alike(const TensorType& one, const TensorType& two) {
    return one.shape == two.shape && one.nbytes == two.nbytes && one.dtype.code == two.dtype.code &&
           one.dtype.bits == two.dtype.bits && one.dtype.lanes == two.dtype.lanes;
  }

  // Reads for preparation. Loads that read to the same place share that place: there it is in use whenever one of them may
  // read. `first` are the ends of the first steps that use the results of the loads.
  void AddRead(const std::pmr::vector<uint32_t>& first) {
    std::pmr::map<uint64_t, std::pmr::vector<Use>> places(memory_);  // by their start
    std::pmr::map<uint64_t, const Load*> kept(memory_);  // by their start
    for (uint32_t j = 0; j < rung_.loads.size(); ++j) {
      const Load& load = rung_.loads[j];
      if (!load.prepared) continue;
      if (load.kept) {
        const auto [found, added] = kept.emplace(load.target, &load);
        if (added || found->second->source != load.source || found->second->nbytes != load.nbytes) {
          Add(0, steps_ + 1, load.target, load.nbytes);
        } else {
          kept_again_ += load.nbytes;
        }
        continue;
      }
      std::pmr::vector<Use>& uses = places[load.target];
      const uint64_t high = load.target + load.nbytes;
      uses.push_back({load.ahead ? 0 : load.after, first[j], load.target, high});
      if (load.ahead) uses.push_back({load.after, steps_ + 1, load.target, high});
    }
    for (auto& [low, uses] : places) {
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
  }

  void Add(uint32_t begin, uint32_t end, int64_t at, uint64_t nbytes) {
    const auto low = static_cast<uint64_t>(at);
    if (nbytes > 0) uses_.push_back({begin, end, low, low + nbytes});
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
      Require(free, rung_, "bytes [", use.low, ", ", use.high, ") are in use when step ", use.begin, " begins, which needs them too");
      live.emplace_hint(behind, use.low, use.high);
    }
  }

  const Rung& rung_;
  const Program& program_;
  std::pmr::memory_resource* const memory_;
  const uint32_t steps_;
  std::pmr::vector<Run> runs_;
  std::pmr::vector<Life> lives_;  // by value
  std::pmr::vector<Use> uses_;
  uint64_t kept_again_ = 0;
};

// Bytes that a load leaves in the arena for the next inference.
uint64_t Stays(const Load& load, const Program& program) {
  if (load.kept || (load.pinned && !load.prepared)) return load.nbytes;
  return load.pinned ? load.prepared->count * program.layers[load.prepared->layer].weights->block_nbytes : 0;
}

// The head's figures, which people and servers read; the plan is known to be right.
void CheckHead(const RungHead& head, const Rung& rung, const Program& program, uint64_t kept_again) {
  uint64_t pinned = 0 - kept_again, streamed = 0;
  for (const Load& load : rung.loads) {
    pinned += Stays(load, program);
    if (!load.pinned && !load.kept) streamed += load.nbytes;
  }
  Require(head.pinned == pinned, rung, "it is said to keep ", head.pinned, " bytes of weights and keeps ", pinned);
  Require(head.streamed == streamed, rung, "it is said to read ", head.streamed, " bytes in an inference and reads ", streamed);
}

}  // namespace

void CheckPlan(const RungHead& head, const Rung& rung, const Program& program) {
  std::pmr::memory_resource* const memory = std::pmr::get_default_resource();
  PlanCheck check(rung, program, memory);
  check.Check();
  CheckHead(head, rung, program, check.kept_again());
  if (rung.cold.empty()) return;
  Rung first = RoomForFirst(program);
  PlanFirst(rung, program, first);
  PlanCheck(first, program, memory).Check();
}

void CheckPlans(const Program& program) {
  for (const RungHead& head : program.rungs) {
    Rung rung;
    ReadPlan(head, program, rung);
    CheckPlan(head, rung, program);
  }
}

PlanChecker::PlanChecker(const Program& program)
    : program_(program), checked_(program.rungs.size(), false), first_(RoomForFirst(program)) {
  // A node of a map, or a place in a vector that grows, for all that a check notes of a step's arguments, a step and a load.
  constexpr size_t kNode = 128;
  const Most most = MostOf(program);
  const size_t args = MostArgs(program, [](const Arg&) { return true; });
  room_nbytes_ = kNode * (9 * (size_t{most.steps} + most.loads) + 2 * program.values.size() + 3 * program.states.size() +
                          3 * args * (size_t{most.steps} + most.cold));
  room_.reset(new std::byte[room_nbytes_]);  // not initialised: memory that no check uses costs nothing
}

void PlanChecker::Check(size_t rung) {
  const std::lock_guard lock(mutex_);
  if (checked_[rung]) return;
  const auto check = [this](const Rung& plan) {
    std::pmr::monotonic_buffer_resource memory(room_.get(), room_nbytes_);
    PlanCheck check(plan, program_, &memory);
    check.Check();
    return check.kept_again();
  };
  const Rung& plan = program_.Decode(rung);
  CheckHead(program_.rungs[rung], plan, program_, check(plan));
  if (!plan.cold.empty()) {
    PlanFirst(plan, program_, first_);
    check(first_);
  }
  checked_[rung] = true;
}

}  // namespace flexcomp

// Contents of the arena over time:
//
//   value          from the first step of the first layer that writes the value, or from the start for an input, to the last
//                  step of the last layer that uses the value; an output to the end of the time between inferences, and
//                  so the arguments of a layer that exchanges, which may have to be called again
//   scratch        its step
#include "program/step_check.h"

#include <algorithm>
#include <map>
#include <utility>

namespace flexcomp {
namespace {

// A layer from its first block to its last.
struct LayerRun {
  uint32_t layer, begin, end;  // steps
};

struct Life {
  uint32_t begin = UINT32_MAX, end = 0;
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

class StepCheck {
 public:
  StepCheck(const Rung& rung, const Program& program, std::span<const Step> steps, std::pmr::memory_resource* memory)
      : rung_(rung), program_(program), step_list_(steps), memory_(memory), steps_(static_cast<uint32_t>(steps.size())), runs_(memory),
        lives_(program.values.size(), memory) {}

  void Check(Uses& uses) {
    FindRuns();
    CheckContents();
    FindLives();
    for (const LayerRun& run : runs_) ReplaceOperand(run);
    for (size_t v = 0; v < lives_.size(); ++v) {
      if (lives_[v].end == 0) continue;
      RequireOfPlan(rung_.value_at[v] != -1, rung_, "value ", program_.values[v].name, " lies outside the arena");
      Add(uses, lives_[v].begin, lives_[v].end, rung_.value_at[v], program_.values[v].nbytes);
    }
    for (uint32_t i = 0; i < steps_; ++i) Add(uses, i, i + 1, step_list_[i].scratch_at, LayerOf(i).scratch_nbytes);
  }

 private:
  const Layer& LayerOf(uint32_t step) const { return program_.layers[step_list_[step].layer]; }

  // Every layer is computed from its first block to its last, in order and with no other in between.
  void FindRuns() {
    uint32_t done = 0, blocks = 0;
    for (uint32_t i = 0; i < steps_; ++i) {
      const Step& step = step_list_[i];
      if (done == blocks) {
        runs_.push_back({step.layer, i, i});
        done = 0;
        blocks = LayerOf(i).weights ? LayerOf(i).weights->blocks : 1;
      }
      RequireOfPlan(step.layer == runs_.back().layer && step.first == done, rung_, "step ", i, " comes before blocks from ", done,
                    " of layer ", program_.layers[runs_.back().layer].name);
      done += step.count;
      runs_.back().end = i + 1;
    }
    RequireOfPlan(done == blocks, rung_, "the last layer lacks blocks from ", done, " on");
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
    for (const LayerRun& run : runs_) {
      const Layer& layer = program_.layers[run.layer];
      for (const Arg& arg : layer.args)
        RequireOfPlan(arg.kind != ArgKind::kValue || arg.written > 0 ||
                          written[arg.value].Holds(arg.offset, arg.offset + arg.type.nbytes),
                      rung_, "layer ", layer.name, " reads of value ", program_.values[arg.value].name, " what no layer has written");
      for (const Arg& arg : layer.args) {
        RequireOfPlan(!arg.exchanged || !given[arg.value] || IsState(arg.value), rung_, "layer ", layer.name, " exchanges bytes of an input");
        if (arg.kind != ArgKind::kValue || arg.written == 0) continue;
        const double part = static_cast<double>(arg.written) / static_cast<double>(arg.type.nbytes);
        RequireOfPlan(!given[arg.value] && written[arg.value].Write(arg.offset, arg.offset + arg.type.nbytes, part), rung_, "layer ",
                      layer.name, " writes to value ", program_.values[arg.value].name, ", which is an input or complete");
      }
    }
    for (const Port& port : program_.outputs)
      RequireOfPlan(written[port.value].Holds(0, port.type.nbytes), rung_, "output ", port.name, " is not written");
    for (const State& state : program_.states)
      RequireOfPlan(state.exchanged() || written[state.result].Holds(0, state.type.nbytes), rung_, "what state ",
                    state.input, " becomes is not written");
  }

  bool IsState(uint32_t value) const { return !program_.states.empty() && program_.states.front().value == value; }

  void FindLives() {
    const auto live = [this](uint32_t value, uint32_t begin, uint32_t end) {
      lives_[value] = {std::min(lives_[value].begin, begin), std::max(lives_[value].end, end)};
    };
    for (const Port& port : program_.inputs) live(port.value, 0, 1);
    for (const State& state : program_.states) live(state.value, 0, steps_ + 1);
    for (const LayerRun& run : runs_)
      for (const Arg& arg : program_.layers[run.layer].args)
        if (arg.kind == ArgKind::kValue) live(arg.value, run.begin, program_.layers[run.layer].exchanges() ? steps_ + 1 : run.end);
    for (const Port& port : program_.outputs) live(port.value, lives_[port.value].begin, steps_ + 1);
    for (const State& state : program_.states) live(state.result, lives_[state.result].begin, steps_ + 1);
  }

  // Where a result takes the place of an operand that the kernel may overwrite, and that ends there, the operand's life
  // is over when the layer begins: the result protects its bytes from then on.
  void ReplaceOperand(const LayerRun& run) {
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

  const Rung& rung_;
  const Program& program_;
  const std::span<const Step> step_list_;
  std::pmr::memory_resource* const memory_;
  const uint32_t steps_;
  std::pmr::vector<LayerRun> runs_;
  std::pmr::vector<Life> lives_;  // by value
};

}  // namespace

void CheckSteps(const Rung& rung, const Program& program, std::span<const Step> steps, std::pmr::memory_resource* memory, Uses& uses) {
  StepCheck(rung, program, steps, memory).Check(uses);
}

}  // namespace flexcomp

// A network in one or several shapes of its inputs, over one weights file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "program/padding.h"
#include "program/program.h"

namespace flexcomp {

class Shapes {
 public:
  // NOLINTNEXTLINE: a program is a network in one shape.
  Shapes(std::shared_ptr<const Program> only) : Shapes(std::vector{std::move(only)}) {}
  // One or more, the largest first, of one network: all say the same of their weights, their states, and all but the extents of
  // their ports. Throws ArtifactError, also for a record of padding that does not fit them.
  explicit Shapes(std::vector<std::shared_ptr<const Program>> programs);

  size_t size() const noexcept { return programs_.size(); }
  const Program& operator[](size_t shape) const noexcept { return *programs_[shape]; }
  std::span<const std::shared_ptr<const Program>> programs() const noexcept { return programs_; }

  // The shape that takes inputs of these extents, as they are or padded. Throws InputError, which names an axis, if there is none. A
  // single shape without padding takes all: who runs it compares the inputs.
  Fit FitOf(std::span<const std::span<const int64_t>> inputs) const {
    return padding_ != nullptr ? padding_->FitOf(programs_, inputs) : Fit{.shape = Find(inputs)};
  }
  // Whether inputs decide what runs.
  bool fits() const noexcept { return padding_ != nullptr || size() > 1; }
  // The largest of what `of` gives for the program of each shape: a budget that is enough for all.
  template <typename Function>
  uint64_t Most(const Function& of) const {
    uint64_t most = 0;
    for (const auto& program : programs_) most = std::max<uint64_t>(most, of(*program));
    return most;
  }
  // nullptr: no input is ever padded.
  const Padding* padding() const noexcept { return padding_.get(); }

 private:
  size_t Find(std::span<const std::span<const int64_t>> inputs) const;

  std::vector<std::shared_ptr<const Program>> programs_;
  std::shared_ptr<const Padding> padding_;
};

// A plan of each shape for a session whose working range is others', too: every shape keeps and works within these bytes.
struct LaneRung {
  uint64_t working, kept;      // bytes
  std::vector<size_t> rungs;   // by shape
};

// One for each rung of the first shape, with the fastest plans of the others that fit beside it. The last one has all shapes on their
// last rungs.
std::vector<LaneRung> LaneLadder(const Shapes& shapes);

// The encoded programs of a library (program_bytes.py); one that begins otherwise is one program. Throws ArtifactError.
std::vector<std::string_view> SplitShapes(std::string_view bytes);

}  // namespace flexcomp

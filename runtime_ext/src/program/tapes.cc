#include "program/tapes.h"

#include <algorithm>

namespace flexcomp {
namespace {

bool IsCopyOf(const Operation& copy, const Operation& read) {
  return copy.kind == Operation::Kind::kCopy && read.kind == Operation::Kind::kRead && copy.from == read.to && copy.nbytes == read.nbytes;
}

}  // namespace

TapeRoom::TapeRoom(const Program& program) {
  const Most most = MostOf(program);
  operations_.reserve(Rung::kTapes * size_t{most.operations});  // memory that no tape uses costs nothing
  if (most.first_steps > 0) first_steps_.reserve(most.steps);
  need_.reserve(Rung::kTapes * size_t{most.steps});
  end_.reserve(size_t{most.operations} + 1);
}

void TapeRoom::Open(const Rung& rung, bool queued, const Omitted& omitted) noexcept {
  operations_.clear();
  need_.clear();
  std::span<const Step> steps = rung.steps, first = steps;
  const auto differs = [&](const FirstStep& other) { return !omitted.layer(steps[other.number].layer); };
  const bool begins_cold = std::ranges::any_of(rung.first_steps, differs);
  if (begins_cold) {
    first_steps_.assign(steps.begin(), steps.end());
    for (const FirstStep& other : rung.first_steps)
      if (differs(other)) first_steps_[other.number] = other.step;
    first = first_steps_;
  }
  const auto open = [&](size_t tape, std::span<const Step> of) { return OpenTape(rung, rung.tapes[tape], of, queued, omitted); };
  tapes_ = {.first = open(Rung::kFirst, first), .fill = open(Rung::kFill, {}), .steady = open(Rung::kSteady, steps)};
  if (!begins_cold) return;
  tapes_.second = open(Rung::kSecond, steps);
  tapes_.settle = open(Rung::kSettle, {});
}

Tape TapeRoom::OpenTape(const Rung& rung, const Rung::TapeRange& range, std::span<const Step> steps, bool queued,
                        const Omitted& omitted) noexcept {
  const size_t begin = operations_.size(), need_begin = need_.size();
  end_.assign(1, 0);
  for (uint32_t r = range.runs_begin; r < range.runs_end; ++r) {
    const Run& run = rung.runs[r];
    for (uint32_t i = 0; i < run.count; ++i) {
      Operation operation = rung.operations[run.operation + i];
      if (operation.after != Operation::kAnytime) operation.after = run.after;
      if (!queued && operations_.size() > begin && IsCopyOf(operation, operations_.back())) {
        operations_.back().to = operation.to;
        operations_.back().after = operation.after;
      } else if (!omitted.operation(operation)) {
        operations_.push_back(operation);
      }
      end_.push_back(static_cast<uint32_t>(operations_.size() - begin));
    }
  }
  for (uint32_t i = range.need_begin; i < range.need_end; ++i) need_.push_back(end_[rung.need[i]]);
  return {{operations_.data() + begin, operations_.size() - begin}, steps, {need_.data() + need_begin, steps.size()}};
}

}  // namespace flexcomp

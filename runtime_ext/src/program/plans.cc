#include "program/plans.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/fork_mutex.h"

namespace flexcomp {
namespace {

constexpr size_t kLists = 6;  // of a plan, each of which begins aligned

size_t RoomFor(const RungHead& head, const Program& program) {
  const size_t needs = Rung::kComputing * size_t{head.steps};
  const size_t nbytes = program.values.size() * sizeof(int64_t) + head.steps * sizeof(Step) + head.first_steps * sizeof(FirstStep) +
                        head.operations * sizeof(Operation) + head.runs * sizeof(Run) + needs * sizeof(uint32_t);
  return RoundUp(nbytes + kLists * alignof(std::max_align_t), alignof(std::max_align_t));
}

}  // namespace

Plans::Plans(const Program& program) {
  size_t nbytes = 0;
  for (const RungHead& head : program.rungs) nbytes += RoomFor(head, program);
  room_.reset(new std::byte[nbytes]);  // not initialised: memory that no plan uses costs nothing
  std::byte* at = room_.get();
  for (const RungHead& head : program.rungs) {
    places_.emplace_back(at, RoomFor(head, program));
    at += RoomFor(head, program);
  }
}

const Rung& Plans::Decode(size_t rung, const Program& program) {
  const std::lock_guard lock(ForkMutex::Get());  // a forked process decodes the rest
  Place& place = places_[rung];
  if (place.rung) return *place.rung;
  place.memory.release();  // memory of a failed attempt
  Rung decoded(&place.memory);
  ReadPlan(program.rungs[rung], program, decoded);
  return place.rung.emplace(std::move(decoded));
}

Program::Program() = default;
Program::Program(Program&&) noexcept = default;
Program::~Program() = default;

const Rung& Program::Decode(size_t rung) const { return plans->Decode(rung, *this); }

const Rung& Program::plan(size_t rung) const noexcept { return plans->At(rung); }

uint64_t DefaultBudget(const Program& program) {
  const auto noted = program.metadata.find("default");
  if (noted == program.metadata.end()) return program.rungs.back().budget;
  const auto is_noted = [&](const RungHead& rung) { return std::to_string(rung.budget) == noted->second; };
  const auto found = std::ranges::find_if(program.rungs, is_noted);
  return found == program.rungs.end() ? program.rungs.back().budget : found->budget;
}

size_t RungFor(const Program& program, uint64_t budget) {
  const std::vector<RungHead>& rungs = program.rungs;
  const auto above = std::ranges::upper_bound(rungs, budget, {}, &RungHead::budget);
  if (above == rungs.begin())
    RaiseError("BudgetError", "a budget of ", budget, " bytes was asked for, the smallest that ", program.model,
               " was built for is ", rungs.front().budget, " bytes");
  return static_cast<size_t>(above - rungs.begin()) - 1;
}

Most MostOf(const Program& program) {
  Most most;
  for (const RungHead& rung : program.rungs) {
    most.steps = std::max(most.steps, rung.steps);
    most.operations = std::max(most.operations, rung.operations);
    most.first_steps = std::max(most.first_steps, rung.first_steps);
  }
  return most;
}

}  // namespace flexcomp

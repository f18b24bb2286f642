// The tapes of a rung as a session does them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"
#include "program/tape.h"

namespace flexcomp {

// Weights that lie in memory already: loads without operations, and layers that are never cold. By index; empty: none.
struct Omitted {
  // Operations of a load; what stays as it is stored may be prepared all the same.
  enum : uint8_t {
    kNone,
    kAll,
    kReads
  };
  std::span<const uint8_t> loads{}, layers{};

  bool load(size_t index) const noexcept { return !loads.empty() && loads[index] != kNone; }
  bool operation(const Operation& one) const noexcept {
    return load(one.load) && (loads[one.load] == kAll || one.kind != Operation::Kind::kPrepare);
  }
  bool layer(size_t index) const noexcept { return !layers.empty() && layers[index] != 0; }
};

// Holds the tapes of one rung at a time, in room that is found for all rungs of a program: budgets shrink where there is none.
class TapeRoom {
 public:
  explicit TapeRoom(const Program& program);
  TapeRoom(const TapeRoom&) = delete;
  TapeRoom& operator=(const TapeRoom&) = delete;

  // From now on the tapes are those of `rung`, which outlives them. `queued`: no thread of this process touches the bytes of reads in
  // flight (ByteSource::queued). Otherwise a read that a copy follows goes to the place of the copy, without the copy: the bytes are
  // still in the caches, then, when they are prepared.
  void Open(const Rung& rung, bool queued, const Omitted& omitted = {}) noexcept;
  const Tapes& tapes() const noexcept { return tapes_; }
  size_t most_operations() const noexcept { return operations_.capacity() / Rung::kTapes; }  // of any tape of the program

 private:
  Tape OpenTape(const Rung& rung, const Rung::TapeRange& range, std::span<const Step> steps, bool queued, const Omitted& omitted) noexcept;

  Tapes tapes_;
  std::vector<Operation> operations_;  // of all tapes
  std::vector<Step> first_steps_;      // of a first inference that differs from later ones
  std::vector<uint32_t> need_;         // of all tapes
  std::vector<uint32_t> end_;          // of the operations of the plan's tape: how many there are up to each
};

}  // namespace flexcomp

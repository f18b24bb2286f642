// The tapes of a rung.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"
#include "program/tape.h"

namespace flexcomp {

// Weights that lie in memory already, not in the arena: loads without operations, and layers that are never cold. By index; empty: none.
struct Omitted {
  std::span<const uint8_t> loads{}, layers{};

  bool load(size_t index) const noexcept { return !loads.empty() && loads[index] != 0; }
  bool layer(size_t index) const noexcept { return !layers.empty() && layers[index] != 0; }
};

// Holds the tapes of one rung at a time, in room that is found for all rungs of a program: budgets shrink where there is none.
class TapeRoom {
 public:
  explicit TapeRoom(const Program& program);
  TapeRoom(const TapeRoom&) = delete;
  TapeRoom& operator=(const TapeRoom&) = delete;

  // From now on the tapes are those of `rung`, which outlives them. `queued`: no thread of this process touches the bytes of reads in
  // flight (ByteSource::queued).
  void Make(const Rung& rung, const Program& program, bool queued, const Omitted& omitted = {}) noexcept;
  const Tapes& tapes() const noexcept { return tapes_; }
  size_t most_operations() const noexcept { return operations_.capacity() / kTapes; }  // of any tape of the program

 private:
  class Writer;
  static constexpr size_t kTapes = 5;

  Tapes tapes_;
  std::vector<Operation> operations_;  // of all tapes
  std::vector<Step> cold_steps_;       // of a first inference that differs from later ones
  std::vector<uint32_t> need_;         // of all tapes
  std::vector<uint32_t> end_;          // of each load: the operations of the tape up to its last
};

}  // namespace flexcomp

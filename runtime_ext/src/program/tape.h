// The work of a session for one inference: operations of its loader, and steps that wait for operations.
#pragma once

#include <cstdint>
#include <span>

namespace flexcomp {

// A kernel call. Addresses are of the arena; -1: none.
struct Step {
  uint32_t layer, first, count;
  int64_t weights_at, scratch_at;
};

// Bytes lie at addresses of the arena, except the source of a read, which is a byte of the data section.
struct Operation {
  enum class Kind : uint8_t {
    kRead,
    kCopy,
    kPrepare
  };

  static constexpr int32_t kAnytime = INT32_MIN;  // nothing uses the target of this read before its turn

  Kind kind = Kind::kRead;
  // The operation begins when so many steps of the inference are computed; 0: when the inference has begun. -n: in the inference
  // before, n - 1 steps before its end.
  int32_t after = 0;
  uint64_t from = 0, to = 0;
  uint64_t nbytes = 0, from_nbytes = 0;      // at either place; equal but for preparations
  uint32_t layer = 0, first = 0, count = 0;  // kPrepare: blocks of a layer
  uint32_t load = 0;                         // of the plan, for people

  bool ahead() const { return after < 0 && after != kAnytime; }
  // The steps after which it begins: of the inference before, which has so many, where the operation is ahead.
  uint32_t StepsBefore(uint32_t steps_before) const {
    const int64_t steps = int64_t{after} + (ahead() ? int64_t{steps_before} + 1 : 0);
    return steps > 0 ? static_cast<uint32_t>(steps) : 0;
  }
};

struct Tape {
  std::span<const Operation> operations{};  // ahead ones first; they complete in this order
  std::span<const Step> steps{};
  std::span<const uint32_t> need{};  // of each step: so many operations must be complete
};

// Of one rung. `first` starts from an arena that holds nothing, and so does `fill`, which brings the weights that stay and
// computes nothing. Both lead to `steady`; where `first` leaves stored weights to be prepared, `first` leads to `second`, or to
// `settle`, which prepares them and computes nothing. `second` and `settle` write outside the working range the same, in the same
// order.
struct Tapes {
  Tape first{}, fill{}, second{}, settle{}, steady{};
};

}  // namespace flexcomp

// Makes the weights for kernels from stored weights.
#pragma once

#include <cstdint>
#include <string>

#include "program/tape.h"

namespace flexcomp {

class Preparer {
 public:
  virtual ~Preparer() = default;

  // The parts of a preparation, which may be prepared in any order, several at a time.
  virtual uint32_t PartsOf(const Operation& operation) const noexcept = 0;
  // Prepares a part; on any thread. Positive: failed.
  virtual int Prepare(const Operation& operation, uint32_t part) noexcept = 0;
  // Why one of them failed. On the thread that computes, when nothing is prepared.
  virtual std::string Fault(const Operation& operation) = 0;
};

}  // namespace flexcomp

// Who makes of what a load has read the weights that kernels want.
#pragma once

#include <cstdint>
#include <string>

namespace flexcomp {

class Preparer {
 public:
  virtual ~Preparer() = default;

  // What a load prepares: so many bytes, in parts that may be prepared in any order, several at a time.
  struct Work {
    uint32_t parts;
    uint64_t nbytes;
  };
  virtual Work WorkOf(uint32_t load) const noexcept = 0;
  // Prepares a part of what a load has read; on any thread. Positive: failed.
  virtual int Prepare(uint32_t load, uint32_t part) noexcept = 0;
  // Why one of them failed. On the thread that computes, when nothing is prepared.
  virtual std::string Fault(uint32_t load) = 0;
};

}  // namespace flexcomp

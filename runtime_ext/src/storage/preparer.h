// Makes the weights for kernels from the bytes of a load.
#pragma once

#include <cstdint>
#include <string>

namespace flexcomp {

class Preparer {
 public:
  virtual ~Preparer() = default;

  // The work of a load: so many bytes, in parts that may be prepared in any order, several at a time.
  struct Work {
    uint32_t parts;
    uint64_t nbytes;
  };
  virtual Work WorkOf(uint32_t load) const noexcept = 0;
  // Prepares a part of a load; on any thread. Positive: failed.
  virtual int Prepare(uint32_t load, uint32_t part) noexcept = 0;
  // Why one of them failed. On the thread that computes, when nothing is prepared.
  virtual std::string Fault(uint32_t load) = 0;
};

}  // namespace flexcomp

// Who makes of what a load has read the weights that kernels want.
#pragma once

#include <cstdint>
#include <string>

namespace flexcomp {

class Preparer {
 public:
  virtual ~Preparer() = default;

  // Prepares what a load has read, all of it; on the loader's thread. Non-zero: failed.
  virtual int Prepare(uint32_t load) noexcept = 0;
  // Why the last one failed. On the thread that computes, when nothing is prepared.
  virtual std::string Fault(uint32_t load) = 0;
};

}  // namespace flexcomp

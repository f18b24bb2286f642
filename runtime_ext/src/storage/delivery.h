// Copies read bytes to memory that reads do not reach.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

// Between a loader and a device to which steps and copies are given that run later, in an order of their own: of the loader's two
// counts, loads are complete and steps computed when they were *issued*, and events keep their order on the device.
// All but Throw and Settle are called by the loader's thread; none allocates. Those that return a bool: false, the device refused.
class Delivery {
 public:
  virtual ~Delivery() = default;

  // The first `steps` steps have been issued, and reads into their places may begin when this returns.
  virtual bool Free(uint32_t steps) noexcept = 0;
  // To where bytes are read that belong to `place`; nullptr: refused.
  virtual std::byte* Begin(std::byte* place, uint64_t nbytes) noexcept = 0;
  // The oldest read that was begun has ended: its bytes go to their place after the first `steps` steps.
  virtual bool End(uint32_t steps) noexcept = 0;
  // The same, but the read failed, or is no longer needed.
  virtual void Drop() noexcept = 0;
  // Operation `operation` of its tape is complete after all work issued so far.
  virtual bool Complete(uint32_t operation) noexcept = 0;

  // Waits for all issued work, steps too. Any thread may call it.
  virtual void Settle() noexcept = 0;
  // Why something was refused: throws ExecutionError.
  [[noreturn]] virtual void Throw() const = 0;
};

}  // namespace flexcomp

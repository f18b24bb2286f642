// The memory that a session works in: its arena, and how bytes of others come in and out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "arena.h"
#include "storage/fresh_pages.h"

namespace flexcomp {

// Addresses in it are as kernels see them; only these functions, and kernels, touch what is there.
class SessionMemory {
 public:
  virtual ~SessionMemory() = default;

  virtual std::byte* base() const noexcept = 0;
  virtual uint64_t nbytes() const noexcept = 0;  // room, at least so much as was asked for
  // Bytes that are in memory. Throws ExecutionError.
  virtual uint64_t Resident() const = 0;
  // What whoever waits may make exist meanwhile.
  virtual FreshPages fresh(uint64_t) const noexcept { return {}; }

  // Finds, while what is there may be in use, whatever `Resize` to so many bytes will need. False: that can only be known when
  // nothing is in use. Throws BudgetError: it will not be there.
  virtual bool Reserve(uint64_t nbytes) = 0;
  // Changes its size, perhaps its addresses, and gives all memory back but what is carried. Nothing is in use. False: there is
  // no room; nothing has changed.
  virtual bool Resize(uint64_t nbytes, const Carried& carried) noexcept = 0;
  [[noreturn]] virtual void RaiseRefusal(uint64_t nbytes) const = 0;
  // Gives memory back, but what is carried, while reads into it may run. False: only Resize can.
  virtual bool Discard(const Carried& carried) noexcept = 0;
  // Before inferences and whatever else touches bytes: finds what went when memory did. True: `base` is another one now. Throws
  // BudgetError and ExecutionError.
  virtual bool Attach() = 0;

  // Whether this process may touch what is there by itself.
  virtual bool visible() const noexcept { return true; }
  // Before tensors of a caller that lie on a device are touched: what others asked it for, by which they are made, has happened.
  virtual void AwaitCaller() {}
  // Copies of bytes between the arena and memory of a caller, by which devices may be meant too. What kernels that were asked for
  // before do to the bytes has happened. Throw ExecutionError.
  virtual void Write(std::byte* place, const void* from, uint64_t nbytes) = 0;
  virtual void Read(void* to, const std::byte* place, uint64_t nbytes) = 0;
  // Within the arena; these must succeed, or no later inference does.
  virtual void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept = 0;
  virtual void Clear(std::byte* place, uint64_t nbytes) noexcept = 0;
  // What lies at `place`, where this process can read it, until the next call. Throws ExecutionError.
  virtual const std::byte* Look(const std::byte* place, uint64_t nbytes) = 0;
};

}  // namespace flexcomp

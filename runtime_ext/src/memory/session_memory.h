// The memory of a session: its arena, and copies of callers' bytes in and out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/arena.h"
#include "memory/fresh_pages.h"

namespace flexcomp {

// Addresses are as kernels see them; only these functions, and kernels, touch the bytes.
class SessionMemory {
 public:
  virtual ~SessionMemory() = default;

  virtual std::byte* base() const noexcept = 0;
  virtual uint64_t nbytes() const noexcept = 0;  // at least as many as requested
  // Bytes that are in memory. Throws ExecutionError.
  virtual uint64_t Resident() const = 0;
  // Pages that waiting threads may make exist.
  virtual FreshPages fresh(uint64_t at, uint64_t nbytes) const noexcept {
    (void)at, (void)nbytes;
    return {};
  }

  // Finds all that `Resize` to so many bytes will need, while memory may be in use. False: this is known only when nothing is
  // in use. Throws BudgetError: the memory will not be there.
  virtual bool Reserve(uint64_t nbytes) = 0;
  // Changes the size, perhaps the addresses, and moves bytes, one move after the other; other bytes may hold anything then. Nothing is
  // in use. `sparse`: after Discard; no more memory is used than for those bytes. False: there is no room; nothing has changed.
  virtual bool Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept = 0;
  [[noreturn]] virtual void RaiseRefusal(uint64_t nbytes) const = 0;
  // Gives memory back, but for the bytes at `from` of `kept`, which ascend, while reads may run. False: only Resize can.
  virtual bool Discard(std::span<const Carried> kept) noexcept = 0;
  // Before inferences and other uses: finds memory again that was given back. True: `base` has changed. Throws
  // BudgetError and ExecutionError.
  virtual bool Attach() = 0;

  // Whether this process may touch the bytes itself.
  virtual bool visible() const noexcept { return true; }
  // Call before touching a caller's tensors on a device: waits for the device's work that makes the tensors.
  virtual void AwaitCaller() {}
  // Copies between the arena and a caller's memory, on a device perhaps. Kernels that were launched before have
  // finished with the bytes. Throw ExecutionError.
  virtual void Write(std::byte* place, const void* from, uint64_t nbytes) = 0;
  virtual void Read(void* to, const std::byte* place, uint64_t nbytes) = 0;
  // Within the arena; these must succeed, or no later inference does.
  virtual void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept = 0;
  virtual void Clear(std::byte* place, uint64_t nbytes) noexcept = 0;
  // The bytes at `place`, readable by this process until the next call. Throws ExecutionError.
  virtual const std::byte* Look(const std::byte* place, uint64_t nbytes) = 0;
};

}  // namespace flexcomp

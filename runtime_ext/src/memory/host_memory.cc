#include "memory/host_memory.h"

#include <tvm/ffi/error.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace flexcomp {

bool HostMemory::Reserve(uint64_t nbytes) {
  Arena next;
  bool has_room = true;
  if (nbytes > arena_.nbytes()) {
    try {
      next = Arena(nbytes);
    } catch (const tvm::ffi::Error&) {
      // Where address space is short, there may be room for one of them.
      has_room = false;
    }
  }
  next_ = std::move(next);
  return has_room;
}

bool HostMemory::Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept {
  if (nbytes > arena_.nbytes() && nbytes <= next_.nbytes()) {
    next_.TakeFrom(arena_, moves);
    arena_ = std::exchange(next_, {});
    return true;
  }
  if (nbytes > arena_.nbytes() && !arena_.Grow(nbytes)) return false;
  arena_.Move(moves, sparse);
  arena_.Shrink(nbytes);
  return true;
}

void HostMemory::RaiseRefusal(uint64_t nbytes) const {
  RaiseError("BudgetError", "cannot map an arena of ", nbytes, " bytes: ", ErrnoText(ENOMEM));
}

}  // namespace flexcomp

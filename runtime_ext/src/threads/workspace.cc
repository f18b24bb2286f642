#include "threads/workspace.h"

#include <new>

#include "base/pages.h"

namespace flexcomp {

Workspace::Workspace() : base_(static_cast<std::byte*>(std::aligned_alloc(kAlign, kWorkspaceBytes)), &std::free) {
  if (!base_) throw std::bad_alloc();
}

void* Workspace::Push(uint64_t nbytes) noexcept {
  // In front of each block stands its size, so that the order of frees can be checked.
  const uint64_t wanted = kAlign + RoundUp(nbytes, kAlign);
  if (nbytes > kWorkspaceBytes || wanted > kWorkspaceBytes - top_) return nullptr;
  std::byte* block = base_.get() + top_ + kAlign;
  new (block - kAlign) uint64_t(wanted);
  top_ += wanted;
  return block;
}

bool Workspace::Pop(void* block) noexcept {
  auto* start = static_cast<std::byte*>(block) - kAlign;
  if (start < base_.get() || start >= base_.get() + top_) return false;
  if (start + *reinterpret_cast<uint64_t*>(start) != base_.get() + top_) return false;
  top_ = static_cast<uint64_t>(start - base_.get());
  return true;
}

}  // namespace flexcomp

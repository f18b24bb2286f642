#include "workspace.h"

#include <tvm/ffi/c_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "program.h"

namespace flexcomp {
namespace {

class WorkspaceStack {
 public:
  void* Push(uint64_t nbytes) {
    if (!base_) base_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, kWorkspaceBytes)));
    // In front of each block stands its size, so that the order of frees can be checked.
    const uint64_t wanted = kAlign + RoundUp(nbytes, kAlign);
    if (!base_ || nbytes > kWorkspaceBytes || wanted > kWorkspaceBytes - top_) return nullptr;
    std::byte* block = base_.get() + top_ + kAlign;
    new (block - kAlign) uint64_t(wanted);
    top_ += wanted;
    return block;
  }
  bool Pop(void* block) {
    auto* start = static_cast<std::byte*>(block) - kAlign;
    if (!base_ || start < base_.get() || start >= base_.get() + top_) return false;
    if (start + *reinterpret_cast<uint64_t*>(start) != base_.get() + top_) return false;
    top_ = static_cast<uint64_t>(start - base_.get());
    return true;
  }
  void Reset() noexcept { top_ = 0; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> base_;
  uint64_t top_ = 0;
};

thread_local WorkspaceStack tls_workspace;  // the backend's interface carries no context

}  // namespace

void* AllocWorkspace(int, int, uint64_t nbytes, int, int) {
  void* block = tls_workspace.Push(nbytes);
  if (block == nullptr) {
    char message[160];
    std::snprintf(message, sizeof(message),
                  "a kernel asked for %llu bytes of hidden workspace; more than %zu must be scratch arguments",
                  static_cast<unsigned long long>(nbytes), kWorkspaceBytes);
    TVMFFIErrorSetRaisedFromCStr("ExecutionError", message);
  }
  return block;
}

int FreeWorkspace(int, int, void* block) {
  if (tls_workspace.Pop(block)) return 0;
  TVMFFIErrorSetRaisedFromCStr("ExecutionError", "a kernel freed its workspaces out of order");
  return -1;
}

void ResetWorkspace() noexcept { tls_workspace.Reset(); }

}  // namespace flexcomp

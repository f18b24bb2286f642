#include "threads/backend.h"

#include <pthread.h>
#include <tvm/ffi/c_api.h>

#include <climits>
#include <cstdio>

#include "base/error.h"
#include "threads/thread_pool.h"

namespace flexcomp {
namespace {

// Not thread_local: in a library that is opened at run time the first use of such a variable allocates, and where there is
// no memory that ends the process. No thread has a context under a key that was not made.
pthread_key_t context_key = PTHREAD_KEYS_MAX;

int ParallelLaunch(ParallelLambda lambda, void* data, int) {
  const ThreadContext* context = GetContext();
  if (context != nullptr && context->pool != nullptr) return context->pool->Launch(lambda, data);
  ParallelGroupEnv env{nullptr, 1};
  return lambda(0, &env, data);
}

void* AllocWorkspace(int, int, uint64_t nbytes, int, int) {
  ThreadContext* context = GetContext();
  if (context == nullptr) {
    TVMFFIErrorSetRaisedFromCStr("ExecutionError", "there is no memory for the workspace of a thread");
    return nullptr;
  }
  void* block = context->workspace.Push(nbytes);
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
  if (ThreadContext* context = GetContext(); context != nullptr && context->workspace.Pop(block)) return 0;
  TVMFFIErrorSetRaisedFromCStr("ExecutionError", "a kernel freed its workspaces out of order");
  return -1;
}

}  // namespace

std::array<BackendPointer, 3> BackendPointers() noexcept {
  return {{{"flexcomp_parallel_launch", reinterpret_cast<void*>(&ParallelLaunch)},
           {"flexcomp_alloc_workspace", reinterpret_cast<void*>(&AllocWorkspace)},
           {"flexcomp_free_workspace", reinterpret_cast<void*>(&FreeWorkspace)}}};
}

void PrepareContexts() {
  [[maybe_unused]] static const bool once = [] {
    pthread_key_t key;
    if (const int error = ::pthread_key_create(&key, nullptr))
      RaiseError("ExecutionError", "cannot keep what belongs to a thread: ", ErrnoText(error));
    context_key = key;
    return true;
  }();
}

bool SetContext(ThreadContext* context) noexcept { return ::pthread_setspecific(context_key, context) == 0; }

ThreadContext* GetContext() noexcept { return static_cast<ThreadContext*>(::pthread_getspecific(context_key)); }

}  // namespace flexcomp

// Generated code defines these weakly and visibly; the linker takes the definition that is strong, and then the visibility
// that is least. A library whose kernels run outside of a session, or with another library's runtime, finds its own.
#define FLEXCOMP_BACKEND_POINTER(hidden, exported, function)                                         \
  extern "C" {                                                                                       \
  __attribute__((visibility("hidden"))) void* hidden = reinterpret_cast<void*>(&flexcomp::function); \
  extern __attribute__((visibility("default"), alias(#hidden))) void* exported;                      \
  }

FLEXCOMP_BACKEND_POINTER(__TVMBackendParallelLaunch, flexcomp_parallel_launch, ParallelLaunch)
FLEXCOMP_BACKEND_POINTER(__TVMBackendAllocWorkspace, flexcomp_alloc_workspace, AllocWorkspace)
FLEXCOMP_BACKEND_POINTER(__TVMBackendFreeWorkspace, flexcomp_free_workspace, FreeWorkspace)

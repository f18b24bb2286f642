// The backend of generated code: the functions that a kernel calls.
//
// Kernels call these through pointers that TVM's loader, where TVM is in the process, fills with TVM's functions
// whenever a library is opened, also while its kernels run. So the pointers are hidden inside each library, and
// exported by names that only sessions know.
#pragma once

#include <array>
#include <cstdint>

#include "threads/workspace.h"

namespace flexcomp {

class ThreadPool;

// The data that generated code passes to and expects from a parallel launch (TVMBackendParallelLaunch).
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task_id, ParallelGroupEnv* env, void* data);

// The pointers of a library, by their exported names, and the values to set.
struct BackendPointer {
  const char* name;
  void* function;
};
std::array<BackendPointer, 3> BackendPointers() noexcept;

// The data that the kernels of one thread use: the backend's interface carries no context, so the context hangs on the
// thread. Every kernel writes there: no two threads' share a cache line.
struct alignas(64) ThreadContext {
  ThreadPool* pool = nullptr;  // for its parallel launches; without a pool these run in the thread itself
  Workspace workspace;
};

// Must have returned before contexts are set. Throws ExecutionError.
void PrepareContexts();
// False: the system has no memory for the context. Neither this nor looking a context up allocates from the second time
// on.
bool SetContext(ThreadContext* context) noexcept;
ThreadContext* GetContext() noexcept;  // nullptr: none was set

}  // namespace flexcomp

// The compute threads of one session, and the parallel launch that kernels call.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "counter.h"
#include "cpu_set.h"
#include "process_mark.h"

namespace flexcomp {

// What generated code passes to and expects from a parallel launch (TVMBackendParallelLaunch).
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task_id, ParallelGroupEnv* env, void* data);

// Function with the signature of TVMBackendParallelLaunch: runs on the pool that the calling thread has
// entered, else alone in the calling thread. The number of tasks asked for is a hint; generated code
// reads the real one from its environment.
int ParallelLaunch(ParallelLambda lambda, void* data, int num_task);

class ThreadPool {
 public:
  // `threads` tasks per launch, the caller's included, on these cores; empty: on any. Where thread 0 runs, the
  // caller's, is the business of whoever enters the pool. Throws ExecutionError if the system grants no more threads.
  ThreadPool(int threads, const CpuSet& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Returns 0, or -1 with the error of one failed task raised in the calling thread.
  int Launch(ParallelLambda lambda, void* data);

  // Makes launches of the calling thread use a pool.
  class Scope {
   public:
    explicit Scope(ThreadPool* pool) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ThreadPool* before_;
  };

 private:
  void Main(int task, const CpuSet& cpus) noexcept;
  void RunTask(int task) noexcept;
  void Stop() noexcept;

  // Set by Launch before generation_ rises.
  ParallelLambda lambda_ = nullptr;
  void* data_ = nullptr;
  ParallelGroupEnv env_;

  Counter generation_, done_;  // done_: the generation in which all workers have returned
  std::atomic<int> running_{0};
  std::atomic<void*> error_{nullptr};  // owned ffi error object of the first failed task
  std::atomic<bool> stop_{false};
  ProcessMark process_;
  std::vector<std::thread> workers_;
};

}  // namespace flexcomp

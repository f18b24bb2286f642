// The compute threads of one session.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/counter.h"
#include "threads/backend.h"
#include "threads/cpu_set.h"

namespace flexcomp {

class ThreadPool {
 public:
  // `threads` tasks per launch, the caller's included, on these cores; empty: on any. The caller
  // chooses the core of thread 0, its own. Throws ExecutionError if the system grants no more threads, and std::bad_alloc.
  ThreadPool(int threads, const CpuSet& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // For the thread that has entered. Returns 0, or -1 with the error of one failed task raised in the calling thread.
  int Launch(ParallelLambda lambda, void* data);
  // Whether launches from now on do with one task less, and leave its core to others. Not while one runs.
  void Spare(bool one) noexcept { spared_ = one && !workers_.empty(); }

  // Makes the kernels of the calling thread use the pool, for the scope's lifetime. Throws ExecutionError.
  class Scope {
   public:
    explicit Scope(ThreadPool& pool);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ThreadContext* before_;
  };

 private:
  void Main(int task, const CpuSet& cpus) noexcept;
  void RunTask(int task) noexcept;
  void Stop() noexcept;  // also if fewer than all have been started

  // Set by Launch before generation_ rises.
  ParallelLambda lambda_ = nullptr;
  void* data_ = nullptr;
  ParallelGroupEnv env_;

  uint32_t launch_ = 0;         // the number of the last one
  Counter begun_, last_begun_;  // the launch that is the workers', and the one that is the last worker's, which may be spared
  Counter done_;                // the last launch from which all workers have returned
  bool spared_ = false;
  std::atomic<int> running_{0};
  std::atomic<void*> error_{nullptr};  // owned ffi error object of the first failed task
  std::atomic<bool> stop_{false};
  std::vector<ThreadContext> contexts_;  // of each task
  std::vector<std::thread> workers_;
};

}  // namespace flexcomp

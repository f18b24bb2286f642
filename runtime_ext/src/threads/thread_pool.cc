#include "threads/thread_pool.h"

#include <tvm/ffi/c_api.h>

#include <system_error>

#include "base/error.h"

namespace flexcomp {
namespace {

// Between two parallel layers lie serial ones of some ten microseconds, and waking a thread takes as long as they do:
// a waiting thread keeps its core for a few hundred microseconds. Where there are more threads than cores, the one that
// is waited for needs the core.
int Spins(int threads, const CpuSet& cpus) noexcept {
  const auto allowed = cpus.empty() ? CpuSet::OfThisThread() : cpus;
  return !allowed || threads <= allowed->count() ? 20000 : 0;
}

}  // namespace

ThreadPool::Scope::Scope(ThreadPool& pool) : before_(GetContext()) {
  ThreadContext& context = pool.contexts_[0];
  context.workspace.Reset();
  if (!SetContext(&context)) throw std::bad_alloc();
}

ThreadPool::Scope::~Scope() { SetContext(before_); }

ThreadPool::ThreadPool(int threads, const CpuSet& cpus)
    : env_{nullptr, threads}, generation_(Spins(threads, cpus)), done_(Spins(threads, cpus)), contexts_(threads) {
  PrepareContexts();
  contexts_[0].pool = this;  // the others run what is launched inside of a launch by themselves
  workers_.reserve(threads - 1);
  try {
    for (int task = 1; task < threads; ++task) workers_.emplace_back([this, task, cpus] { Main(task, cpus); });
  } catch (const std::system_error& error) {
    Stop();  // threads that run must not outlive their pool, nor be destroyed
    RaiseError("ExecutionError", "cannot start ", threads, " threads: ", error.code().message());
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() noexcept {
  stop_ = true;
  generation_.Set(generation_.Get() + 1);
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::Launch(ParallelLambda lambda, void* data) {
  if (workers_.empty()) return lambda(0, &env_, data);
  contexts_[0].pool = nullptr;  // launches inside of this one run by themselves
  lambda_ = lambda;
  data_ = data;
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  const uint32_t generation = generation_.Get() + 1;
  generation_.Set(generation);
  RunTask(0);
  done_.WaitEqual(generation);
  contexts_[0].pool = this;
  void* error = error_.exchange(nullptr, std::memory_order_relaxed);
  if (error == nullptr) return 0;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return -1;
}

void ThreadPool::RunTask(int task) noexcept {
  if (lambda_(task, &env_, data_) == 0) return;
  void* error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  void* none = nullptr;
  if (error != nullptr && !error_.compare_exchange_strong(none, error)) TVMFFIObjectDecRef(error);
}

void ThreadPool::Main(int task, const CpuSet& cpus) noexcept {
  if (!cpus.empty()) cpus.ApplyToThisThread();
  for (uint32_t seen = 0;;) {
    seen = generation_.WaitOther(seen);
    if (stop_) return;
    contexts_[task].workspace.Reset();
    if (GetContext() == nullptr) SetContext(&contexts_[task]);  // if that fails, a kernel that needs it is told
    RunTask(task);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.Set(seen);
  }
}

}  // namespace flexcomp

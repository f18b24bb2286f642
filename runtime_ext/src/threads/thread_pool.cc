#include "threads/thread_pool.h"

#include <tvm/ffi/c_api.h>

#include <system_error>

#include "base/error.h"

namespace flexcomp {
namespace {

// Between two parallel layers lie serial ones of some ten microseconds, and waking a thread takes as long: a waiting
// thread keeps its core for a few hundred microseconds. Where there are more threads than cores, the awaited thread
// needs the core.
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
    : env_{nullptr, threads},
      begun_(Spins(threads, cpus)),
      last_begun_(Spins(threads, cpus)),
      done_(Spins(threads, cpus)),
      contexts_(threads) {
  PrepareContexts();
  contexts_[0].pool = this;  // the others run launches inside of a launch by themselves
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
  begun_.Set(++launch_);
  last_begun_.Set(launch_);
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::Launch(ParallelLambda lambda, void* data) {
  if (workers_.empty()) return lambda(0, &env_, data);
  contexts_[0].pool = nullptr;  // launches inside of this one run by themselves
  lambda_ = lambda;
  data_ = data;
  const int workers = static_cast<int>(workers_.size()) - (spared_ ? 1 : 0);
  env_.num_task = workers + 1;
  running_.store(workers, std::memory_order_relaxed);
  ++launch_;
  if (workers_.size() > 1) begun_.Set(launch_);
  if (!spared_) last_begun_.Set(launch_);
  RunTask(0);
  if (workers > 0) done_.WaitEqual(launch_);
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
  const Counter& begun = task == static_cast<int>(contexts_.size()) - 1 ? last_begun_ : begun_;
  for (uint32_t seen = 0;;) {
    seen = begun.WaitOther(seen);
    if (stop_) return;
    contexts_[task].workspace.Reset();
    if (GetContext() == nullptr) SetContext(&contexts_[task]);  // if that fails, a kernel that needs a context is told
    RunTask(task);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.Set(seen);
  }
}

}  // namespace flexcomp

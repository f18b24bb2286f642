#include "thread_pool.h"

#include <tvm/ffi/c_api.h>

#include <system_error>
#include <utility>

#include "error.h"
#include "workspace.h"

namespace flexcomp {
namespace {

// The backend's interface carries no context, so the pool in use hangs on the calling thread.
thread_local ThreadPool* tls_pool = nullptr;

// Between two parallel layers lie serial ones of some ten microseconds, and waking a thread takes as long as they do:
// a waiting thread keeps its core for a few hundred microseconds. Where there are more threads than cores, the one that
// is waited for needs the core.
int Spins(int threads, const CpuSet& cpus) noexcept {
  const auto allowed = cpus.empty() ? CpuSet::OfThisThread() : cpus;
  return !allowed || threads <= allowed->count() ? 20000 : 0;
}

}  // namespace

int ParallelLaunch(ParallelLambda lambda, void* data, int) {
  if (tls_pool != nullptr) return tls_pool->Launch(lambda, data);
  ParallelGroupEnv env{nullptr, 1};
  return lambda(0, &env, data);
}

ThreadPool::Scope::Scope(ThreadPool* pool) noexcept : before_(tls_pool) { tls_pool = pool; }
ThreadPool::Scope::~Scope() { tls_pool = before_; }

ThreadPool::ThreadPool(int threads, const CpuSet& cpus)
    : env_{nullptr, threads}, generation_(Spins(threads, cpus)), done_(Spins(threads, cpus)) {
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
  if (!process_.IsThisProcess()) {
    new std::vector<std::thread>(std::move(workers_));  // forgotten: handles may be other threads' by now
    return;
  }
  stop_ = true;
  generation_.Set(generation_.Get() + 1);
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::Launch(ParallelLambda lambda, void* data) {
  const Scope nested_launches_run_inline(nullptr);
  if (workers_.empty()) return lambda(0, &env_, data);
  lambda_ = lambda;
  data_ = data;
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  const uint32_t generation = generation_.Get() + 1;
  generation_.Set(generation);
  RunTask(0);
  done_.WaitEqual(generation);
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
    ResetWorkspace();
    RunTask(task);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.Set(seen);
  }
}

}  // namespace flexcomp

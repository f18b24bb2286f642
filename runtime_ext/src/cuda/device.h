// A GPU, and this process's context there.
#pragma once

#include <atomic>
#include <string>

#include "cuda/driver.h"

namespace flexcomp::cuda {

inline constexpr Result kUnknownError = 999;

// A call that the driver refused.
struct Refusal {
  Result result = kSuccess;
  const char* call = "";

  explicit operator bool() const noexcept { return result != kSuccess; }
};

// The first GPU that the process sees, its primary context, which other libraries share, and two streams of our own. Any thread
// may call any function.
class Device {
 public:
  // Throws TargetError: there is no driver or no GPU; ExecutionError: the driver refuses a context.
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const noexcept { return ordinal_; }
  int major() const noexcept { return major_; }
  int minor() const noexcept { return minor_; }
  int architecture() const noexcept { return major_ * 10 + minor_; }  // 87: sm_87
  bool integrated() const noexcept { return integrated_; }            // the GPU shares the memory of this processor
  const std::string& name() const noexcept { return name_; }
  Stream compute() const noexcept { return compute_; }
  Stream copy() const noexcept { return copy_; }

  // Calls function(driver) in the context; `call` is the name in messages.
  template <typename Function>
  Refusal Try(const char* call, const Function& function) noexcept {
    if (const Result result = Enter(); result != kSuccess) return Note({result, "cuCtxPushCurrent"});
    const Result result = function(driver_);
    Leave();
    return Note({result, call});
  }
  // The same; throws the errors of Raise.
  template <typename Function>
  void Do(const char* call, const Function& function) {
    if (const Refusal refusal = Try(call, function)) Raise(refusal);
  }

  // For calls whose failure nobody can handle, such as giving back: tried twice.
  template <typename Function>
  Refusal Insist(const char* call, const Function& function) noexcept {
    const Refusal refusal = Try(call, function);
    return refusal ? Try(call, function) : refusal;
  }

  // Waits until all that the stream was given is over.
  void Finish(Stream stream);
  // The same for work of others on the default stream.
  void FinishDefault() { Finish(reinterpret_cast<Stream>(kDefaultStream)); }
  // The same for both, with errors ignored: afterwards nothing runs, or nothing ever will.
  void Settle() noexcept;

  [[noreturn]] void Raise(const Refusal& refusal, const char* kind = "ExecutionError") const;
  std::string Describe(const Refusal& refusal) const;
  // From now on nothing runs any more, because of that.
  void Lose(const Refusal& refusal) noexcept { lost_.store(refusal.result, std::memory_order_relaxed); }
  // After some errors of kernels a context refuses everything, for good. Throws ExecutionError for such a context.
  void RequireAlive() const;

 private:
  Result Enter() noexcept { return driver_.ContextPush(context_); }
  void Leave() noexcept {
    Context left;
    driver_.ContextPop(&left);
  }
  Refusal Note(const Refusal& refusal) noexcept;
  int Attribute(int attribute) const;
  void Open();
  void Close() noexcept;

  Driver driver_;
  int ordinal_ = 0, major_ = 0, minor_ = 0;
  bool integrated_ = false;
  std::string name_;
  Context context_ = nullptr;
  Stream compute_ = nullptr, copy_ = nullptr;
  std::atomic<Result> lost_{kSuccess};  // why the context is
};

}  // namespace flexcomp::cuda

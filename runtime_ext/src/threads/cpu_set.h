// A set of cores, and which of them threads may run on.
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <vector>

namespace flexcomp {

class CpuSet {
 public:
  CpuSet() noexcept { CPU_ZERO(&set_); }
  // Throws InputError for a number that no core has.
  explicit CpuSet(const std::vector<int>& cpus);
  // Linux's list format: "0-3,6". Throws InputError.
  static CpuSet Parse(const std::string& list);
  // Where the calling thread may run: its own mask, within the control group's. Nothing where the system does not say.
  static std::optional<CpuSet> OfThisThread() noexcept;
  // The cores that the thread could be allowed: those of the control group, whatever the mask is now.
  static std::optional<CpuSet> Available() noexcept;

  bool ApplyToThisThread() const noexcept { return ::sched_setaffinity(0, sizeof(set_), &set_) == 0; }

  bool empty() const noexcept { return CPU_COUNT(&set_) == 0; }
  int count() const noexcept { return CPU_COUNT(&set_); }
  std::vector<int> cpus() const;  // ascending
  std::string ToString() const;   // in the format of Parse
  void Insert(int cpu) noexcept { CPU_SET(cpu, &set_); }
  CpuSet Without(const CpuSet& other) const noexcept;

 private:
  cpu_set_t set_;
};

// Moves the calling thread off a core if the thread is there, and may run on others; the system may move the thread
// back at any time.
void StepAside(int cpu) noexcept;

// Lets the calling thread run on some cores only; its owner's choice comes back afterwards.
class ScopedAffinity {
 public:
  // An empty set changes nothing. If cores have been taken away since the choice, the request is not granted.
  explicit ScopedAffinity(const CpuSet& cpus) noexcept {
    if (cpus.empty()) return;
    before_ = CpuSet::OfThisThread();
    if (before_) cpus.ApplyToThisThread();
  }
  ~ScopedAffinity() {
    if (before_) before_->ApplyToThisThread();
  }
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  std::optional<CpuSet> before_;
};

}  // namespace flexcomp

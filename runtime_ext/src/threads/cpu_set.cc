#include "threads/cpu_set.h"

#include <charconv>
#include <cstring>

#include "base/error.h"

namespace flexcomp {
namespace {

bool Exists(int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE; }

}  // namespace

CpuSet::CpuSet(const std::vector<int>& cpus) : CpuSet() {
  for (const int cpu : cpus) {
    if (!Exists(cpu)) RaiseError("InputError", "there is no core ", cpu);
    Insert(cpu);
  }
}

CpuSet CpuSet::Parse(const std::string& list) {
  CpuSet set;
  const char *at = list.data(), *end = at + list.size();
  const auto fail = [&] { RaiseError("InputError", "cannot read the list of cores \"", list, "\": write 0-3,6"); };
  const auto number = [&] {
    int cpu = -1;
    const auto [next, error] = std::from_chars(at, end, cpu);
    if (error != std::errc{} || !Exists(cpu)) fail();
    at = next;
    return cpu;
  };
  for (;;) {
    const int first = number();
    const int last = at != end && *at == '-' ? (++at, number()) : first;
    if (last < first) fail();
    for (int cpu = first; cpu <= last; ++cpu) set.Insert(cpu);
    if (at == end) return set;
    if (*at++ != ',') fail();
  }
}

std::optional<CpuSet> CpuSet::OfThisThread() noexcept {
  CpuSet set;
  if (::sched_getaffinity(0, sizeof(set.set_), &set.set_) != 0) return std::nullopt;
  return set;
}

std::optional<CpuSet> CpuSet::Available() noexcept {
  CpuSet all;
  std::memset(&all.set_, 0xff, sizeof(all.set_));
  const ScopedAffinity widest(all);  // the system keeps the cores that the control group allows
  return OfThisThread();
}

std::vector<int> CpuSet::cpus() const {
  std::vector<int> list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set_)) list.push_back(cpu);
  return list;
}

std::string CpuSet::ToString() const {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set_)) continue;
    const int first = cpu;
    while (cpu + 1 < CPU_SETSIZE && CPU_ISSET(cpu + 1, &set_)) ++cpu;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (cpu > first) text += "-" + std::to_string(cpu);
  }
  return text;
}

CpuSet CpuSet::Without(const CpuSet& other) const noexcept {
  CpuSet rest = *this;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &other.set_)) CPU_CLR(cpu, &rest.set_);
  return rest;
}

void StepAside(int cpu) noexcept {
  if (!Exists(cpu) || ::sched_getcpu() != cpu) return;
  const auto allowed = CpuSet::OfThisThread();
  if (!allowed) return;
  CpuSet here;
  here.Insert(cpu);
  if (const CpuSet others = allowed->Without(here); !others.empty() && others.ApplyToThisThread()) allowed->ApplyToThisThread();
}

}  // namespace flexcomp

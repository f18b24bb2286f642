#include "threads/cores.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"

namespace flexcomp {
namespace {

// Cores count as the fastest kind from this share of its capacity. Favoured cores of one kind may run 15 % faster than
// the others; cores of different kinds differ by more than a quarter.
constexpr double kSameKind = 0.8;

// The number in a file of sysfs; 0: there is none.
uint64_t ReadNumber(const std::string& path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

std::vector<Core> ReadNumbers(const std::string& root, const CpuSet& cpus, const char* file) {
  std::vector<Core> cores;
  for (const int cpu : cpus.cpus()) {
    const uint64_t capacity = ReadNumber(root + "/cpu" + std::to_string(cpu) + "/" + file);
    if (capacity == 0) return {};
    cores.push_back({cpu, capacity});
  }
  return cores;
}

// Cores of one kind, and the pace of all cores that are at least as fast.
struct Kind {
  CpuSet cpus;
  uint64_t slowest;
};

// The fastest first.
std::vector<Kind> KindsOf(std::vector<Core> cores) {
  std::ranges::sort(cores, std::greater(), &Core::capacity);
  std::vector<Kind> kinds;
  uint64_t fastest = 0;
  for (const Core& core : cores) {
    if (kinds.empty() || static_cast<double>(core.capacity) < kSameKind * static_cast<double>(fastest)) {
      kinds.emplace_back();
      fastest = core.capacity;
    }
    kinds.back().cpus.Insert(core.cpu);
    kinds.back().slowest = core.capacity;
  }
  return kinds;
}

void RequireAvailable(const char* what, const CpuSet& asked) {
  const auto available = CpuSet::Available();
  if (!available) return;
  if (const CpuSet missing = asked.Without(*available); !missing.empty())
    RaiseError("InputError", "cannot ", what, " on core ", missing.ToString(), ": this process may use ",
               available->ToString());
}

}  // namespace

std::vector<Core> ReadCores(const std::string& root, const CpuSet& cpus) {
  std::vector<Core> cores = ReadNumbers(root, cpus, "cpu_capacity");
  return cores.empty() ? ReadNumbers(root, cpus, "cpufreq/cpuinfo_max_freq") : cores;
}

CoreChoice ChooseCores(std::vector<Core> cores, int threads, bool asked) {
  const std::vector<Kind> kinds = KindsOf(std::move(cores));
  CoreChoice best;
  uint64_t best_pace = 0;
  CpuSet compute;
  for (size_t i = 0; i + 1 < kinds.size(); ++i) {
    for (const int cpu : kinds[i].cpus.cpus()) compute.Insert(cpu);
    if (asked && compute.count() < threads) continue;
    const uint64_t pace = std::min(compute.count(), threads) * kinds[i].slowest;
    if (pace <= best_pace) continue;
    best_pace = pace;
    best = {compute, kinds.back().cpus};
  }
  return best;
}

Placement Place(const CoreOptions& options, int threads, int built_for) {
  if (!options.affinity && !(options.compute.empty() && options.loader.empty()))
    Raise("InputError", "cores are named, and threads shall not be bound to any: only one of both is possible");
  RequireAvailable("compute", options.compute);
  RequireAvailable("load", options.loader);

  const auto allowed = CpuSet::OfThisThread();
  CoreChoice choice;
  if (options.affinity && allowed)
    choice = ChooseCores(ReadCores(options.root, *allowed), threads > 0 ? threads : built_for, threads > 0);
  Placement placement{threads, choice.compute, choice.loader};
  if (!options.compute.empty()) {
    placement.compute = options.compute;
    placement.loader = choice.loader.Without(options.compute);
  }
  if (!options.loader.empty()) placement.loader = options.loader;
  if (threads > 0) return placement;
  // Threads wait for each other: with fewer cores than threads, for the scheduler.
  placement.threads = built_for;
  if (!placement.compute.empty())
    placement.threads = std::min(built_for, placement.compute.count());
  else if (allowed)
    placement.threads = std::min(built_for, allowed->count());
  return placement;
}

}  // namespace flexcomp

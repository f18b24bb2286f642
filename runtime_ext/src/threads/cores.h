// Which cores compute and which one loads.
//
// Where cores differ (big.LITTLE), kernels run on the big ones and weights are loaded on little ones: a loader sleeps
// most of the time, and a little core is enough to ask a disk for bytes. On equal cores nothing is pinned, and the
// loader runs wherever the system finds room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "threads/cpu_set.h"

namespace flexcomp {

struct Core {
  int cpu;
  uint64_t capacity;  // computing speed, compared with the other cores
};

// The cores of a set as sysfs describes them: their capacity, or where the system does not know, their highest
// frequency. Nothing where one of them has neither. `root` is /sys/devices/system/cpu, but for tests.
std::vector<Core> ReadCores(const std::string& root, const CpuSet& cpus);

struct CoreChoice {
  CpuSet compute, loader;  // each empty: wherever the system likes
};

// Chooses for `threads` compute threads. `asked`: the user wants so many, otherwise fewer will do. Threads get equal
// shares of the work and wait for the slowest: so many of the fastest cores are taken as compute most at the pace of
// the slowest one taken. Cores that differ by less than a fifth are the same; the smallest ones never compute, unless
// threads that the user asked for do not fit elsewhere: then nothing is pinned.
CoreChoice ChooseCores(std::vector<Core> cores, int threads, bool asked);

struct CoreOptions {
  bool affinity = true;     // false: threads run wherever the system likes
  CpuSet compute, loader;   // empty: chosen
  std::string root = "/sys/devices/system/cpu";
};

// Where the threads of a session run, and how many compute.
struct Placement {
  int threads;
  CpuSet compute, loader;  // each empty: wherever the system likes
};

// `threads` as asked for, or 0; `built_for` so many, unless there are fewer cores for them. Throws InputError.
Placement Place(const CoreOptions& options, int threads, int built_for);

}  // namespace flexcomp

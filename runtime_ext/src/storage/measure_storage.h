// How the storage of a file serves the runtime's own loader: plans are made for these rates.
#pragma once

#include <string>

#include "threads/cpu_set.h"

namespace flexcomp {

struct StorageRates {
  double bytes_per_s;  // of large loads, in the best of several passes over the file
  double small_pages_bytes_per_s;  // the same into memory that is not in huge pages, in the median of several places
  double latency_s;    // of a small load while no other is in flight, without its bytes; the median, in the best of several rounds
  bool direct;         // reads bypassed the page cache
};

// Reads the file for about `seconds`. The loader runs on `cpus`, as in a session. Throws ArtifactError if the file cannot be
// opened or is small, StorageError if reading fails.
StorageRates MeasureStorage(const std::string& path, const CpuSet& cpus, double seconds);

}  // namespace flexcomp

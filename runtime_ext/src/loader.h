// The thread that reads weights into the arena while kernels compute.
//
// Two counters order everything: load j starts when `after[j]` steps are computed, a step starts when
// `need` loads are complete. Both counts restart with every inference.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>

#include "counter.h"
#include "process_mark.h"
#include "program.h"
#include "trace.h"
#include "weights_file.h"

namespace flexcomp {

class Loader {
 public:
  struct Counts {
    uint64_t bytes = 0;
    uint64_t reads = 0;  // reads of the file, at most one chunk each
  };

  // `cpu` < 0: wherever the system likes.
  Loader(WeightsFile& file, int cpu);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins the loads of one inference. With `pinned_resident` the pinned ones count as complete at once.
  // Where there are `spans`, one for each load, they say when each ran once the inference is finished.
  void Start(std::span<const Load> loads, std::byte* arena, bool pinned_resident, std::span<Span> spans);

  // Waits until `need` loads are complete; false: the loads were interrupted. Throws StorageError if one failed.
  bool Await(uint32_t need) {
    return (loaded_.Get() >= need && !failed()) || AwaitSlow(need);
  }
  // Whether Await(need) would have to wait.
  bool Ready(uint32_t need) const noexcept { return loaded_.Get() >= need; }

  // Says that the first `steps` steps are computed.
  void Computed(uint32_t steps) noexcept { computed_.Set(steps); }

  // Gives up the loads of this inference soon: after the read that runs. Any thread may call it.
  void Interrupt() noexcept { interrupted_.store(true, std::memory_order_relaxed); }

  // Waits for the rest of the loads; false: interrupted. Throws StorageError if one failed.
  bool Finish();
  // Gives up the loads that have not started and waits for the one that has.
  void Abort() noexcept;

  // Of the inference that was finished or aborted last.
  const Counts& counts() const noexcept { return counts_; }

 private:
  static constexpr uint32_t kFailed = UINT32_MAX;   // value of loaded_
  static constexpr uint32_t kAborted = UINT32_MAX;  // value of computed_

  // What went wrong; written by the loader thread before loaded_ says kFailed.
  struct Failure {
    int error = 0;
    uint64_t load = 0;
    uint64_t offset = 0;
  };

  bool failed() const noexcept { return loaded_.Get() == kFailed; }
  bool AwaitSlow(uint32_t need);
  bool interrupted() const noexcept { return interrupted_.load(std::memory_order_relaxed); }
  void AwaitIdle() noexcept { finished_.WaitEqual(started_count_); }
  bool CheckFailure() const;  // false: interrupted; throws otherwise
  void Main(int cpu) noexcept;
  void RunLoads() noexcept;
  int ReadLoad(const Load& load) noexcept;

  WeightsFile& file_;

  // Set by Start before started_ rises.
  std::span<const Load> loads_;
  std::span<Span> spans_;  // empty: not wanted
  std::byte* arena_ = nullptr;
  bool pinned_resident_ = false;
  uint32_t first_ = 0;  // loads before it were complete at the start

  Counter loaded_, computed_;
  Counter started_, finished_;   // inferences, counted modulo 2^32; equal when the thread is idle
  uint32_t started_count_ = 0;
  std::atomic<bool> stop_{false}, interrupted_{false};
  Failure failure_;
  Counts counts_;
  ProcessMark process_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace flexcomp

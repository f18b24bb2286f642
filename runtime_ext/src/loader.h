// The thread that reads weights into the arena while kernels compute.
//
// Two counters order everything: load j starts when `after[j]` steps are computed, a step starts when
// `need` loads are complete. Both counts restart with every inference. The first loads of a program may be
// read ahead: once all loads of an inference are complete, those of the next begin, after the steps of this one.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "counter.h"
#include "cpu_set.h"
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

  // Runs on these cores; empty: wherever the system likes.
  Loader(WeightsFile& file, const CpuSet& cpus);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // From now on these are the loads, into this arena, which holds nothing yet. Not while anything is read.
  void Open(std::span<const Load> loads, std::byte* arena);

  // Begins the loads of one inference, as far as they were not read ahead. `spans` is empty, or has a place for
  // every load, where it is noted when it ran; those of the loads read ahead are there after Finish.
  void Start(std::span<Span> spans);

  // Waits until `need` loads are complete; false: the loads were interrupted. Throws StorageError if one failed.
  bool Await(uint32_t need) {
    const uint32_t loaded = turn_->loaded.Get();
    return (loaded >= need && loaded != kFailed) || AwaitSlow(need);
  }
  // Whether Await(need) would have to wait.
  bool Ready(uint32_t need) const noexcept { return turn_->loaded.Get() >= need; }

  // Says that the first `steps` steps are computed.
  void Computed(uint32_t steps) noexcept { turn_->computed.Set(steps); }

  // Gives up loading soon: after the read that runs. Any thread may call it.
  void Interrupt() noexcept { interrupted_.store(true, std::memory_order_relaxed); }

  // Waits for the rest of the loads of this inference; false: interrupted. Throws StorageError if one failed.
  bool Finish();
  // Gives up the loads that have not started and waits for the one that has. The next inference starts afresh:
  // what is in the arena counts for nothing.
  void Abort() noexcept;

  // For the inference that was finished last, including what was read ahead for it.
  const Counts& counts() const noexcept { return turn_->counts; }
  // Since the loader came to life, whatever for.
  uint64_t total_bytes() const noexcept { return total_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kFailed = UINT32_MAX;   // value of Turn::loaded
  static constexpr uint32_t kAborted = UINT32_MAX;  // value of Turn::computed

  // What went wrong; written by the loader thread before Turn::loaded says kFailed.
  struct Failure {
    int error = 0;
    uint64_t load = 0;
    uint64_t offset = 0;
  };

  // One inference. While one is computed the next is read ahead, and the loader thread may still look at the one
  // before, for whose last steps it waited: the turns of several inferences are used in rotation.
  struct Turn {
    Counter loaded, computed;
    Counts counts;
    Failure failure;
    std::vector<Span> ahead;  // when the loads that are read ahead ran
  };
  static constexpr uint32_t kTurns = 4;  // a power of two: inferences are counted modulo 2^32
  Turn& TurnOf(uint32_t inference) noexcept { return turns_[inference % kTurns]; }

  void Reset() noexcept;
  bool AwaitSlow(uint32_t need);
  bool interrupted() const noexcept { return interrupted_.load(std::memory_order_relaxed); }
  void AwaitIdle() noexcept { finished_.WaitEqual(started_count_); }
  bool CheckFailure() const;  // false: interrupted; throws otherwise
  void Main(const CpuSet& cpus) noexcept;
  // Whether all were read.
  bool RunLoads(Turn& turn) noexcept;
  void ReadAhead(const Turn& turn, Turn& next) noexcept;
  // Whether load `j` was read; otherwise it failed or was given up.
  bool RunLoad(uint32_t j, Turn& turn, Span* span) noexcept;
  int ReadLoad(const Load& load, Turn& turn) noexcept;

  WeightsFile& file_;

  // Set by Open while the thread is idle.
  std::span<const Load> loads_;
  std::byte* arena_ = nullptr;
  uint32_t ahead_end_ = 0;   // the loads before it are read ahead, or pinned
  bool all_pinned_ = false;

  // The thread's own, and of Open and Abort while it is idle.
  bool resident_ = false;    // the pinned loads are in the arena
  uint32_t read_ahead_ = 0;  // loads of the next inference that are complete

  // Of the thread that computes.
  Turn turns_[kTurns];
  Turn* turn_ = &turns_[0];  // of the current or the last inference
  bool finished_once_ = false;
  uint32_t started_count_ = 0;

  std::span<Span> spans_;       // set by Start before started_ rises
  Counter started_, finished_;  // inferences, counted modulo 2^32; equal when the thread is idle
  std::atomic<bool> abort_{false};
  std::atomic<uint64_t> total_bytes_{0};
  std::atomic<bool> stop_{false}, interrupted_{false};
  ProcessMark process_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace flexcomp

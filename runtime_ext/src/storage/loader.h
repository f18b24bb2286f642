// The thread that reads weights into the arena while kernels compute.
//
// Two counters order everything: load j starts when `after[j]` steps are computed, a step starts when
// `need` loads are complete. Both counts restart with every inference. The first loads of a program may be
// read ahead: the loads of the next inference begin after all loads of this one, and after the steps that `after` counts.
//
// Several reads are in flight at a time, so that the device does not idle between reads; loads complete in order.
// Some loads have to be prepared: the same thread prepares a load while later reads are in flight, and threads that
// wait for the load help.
//
// The first inference may have loads of its own, for weights in their stored form. The loader prepares these weights from the
// arena for the second inference, after the last step that needs the stored form: when nothing is to be read, or at the latest
// when the load's turn comes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counter.h"
#include "base/shared_work.h"
#include "base/sync.h"
#include "memory/places.h"
#include "program/program.h"
#include "storage/byte_source.h"
#include "storage/delivery.h"
#include "memory/fresh_pages.h"
#include "storage/preparer.h"
#include "storage/trace.h"
#include "storage/weights_file.h"
#include "threads/cpu_set.h"

namespace flexcomp {

class Loader {
 public:
  struct Counts {
    uint64_t bytes = 0;
    uint64_t reads = 0;   // reads of the file, at most one chunk each
    int64_t busy_ns = 0;  // in which a read was in flight
    uint64_t prepared_bytes = 0;
    int64_t prepare_ns = 0;  // of the loader
    int64_t help_ns = 0;     // of threads that waited
  };

  // Runs on these cores; empty: wherever the system likes. `own_core`: no other thread wants the loader's core. `apart`: when an
  // inference begins on the loader's core, the loader moves to another core. Otherwise the system of a virtual machine lets both
  // take turns there for some milliseconds: the system takes a sleeping core for one that others use.
  Loader(WeightsFile& file, const CpuSet& cpus, bool own_core, bool apart = false);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Whether waiting threads help; by default they do.
  void LetHelp(bool helping) noexcept { helping_ = helping; }
  // The copier of read bytes to a device, ordered after steps that count when they are issued. Call this before the first
  // read.
  void Deliver(Delivery* delivery) noexcept { delivery_ = delivery; }

  // Finds the memory that opening so many loads takes.
  void Reserve(size_t loads);
  // From now on these are the loads, into this arena, which holds nothing yet. Not while anything is read. There must be
  // room for the loads, unless none is read ahead. `preparer` prepares weights after reading. `first` are the loads of the
  // first inference, as many, if that has loads of its own.
  void Open(std::span<const Load> loads, Places arena, FreshPages fresh = {}, Preparer* preparer = nullptr,
            std::span<const Load> first = {}) noexcept;

  // Begins the loads of one inference, without loads that were read ahead. `spans` is empty, or has a place for the times of
  // every load; times of loads read ahead are there after Finish.
  void Start(std::span<LoadSpans> spans) { Begin(spans, false); }
  // Begins an inference that computes nothing and runs only loads of bytes that stay. Not where all of these are there.
  void StartFilling() {
    if (stage_ == Stage::kCold) GiveUpAhead();  // the thread looks at the turn that this changes
    Begin({}, true);
  }
  // Whether the next inference is a first one, with loads of its own. Only while no inference runs, like the next two.
  bool StartsCold() const noexcept { return stage_ == Stage::kEmpty && !first_.empty(); }
  // Whether the weights that stay are in the arena, in the form for all later inferences.
  bool Filled() const noexcept { return stage_ == Stage::kFilled; }
  // Whether all weights are in the arena, and stay there.
  bool Resident() const noexcept { return all_pinned_ && Filled(); }

  // Waits until `need` loads are complete, and meanwhile prepares a part, or reads one where reads are copies, or makes pages
  // of the arena exist; false: the loads were interrupted. Throws StorageError if one failed.
  bool Await(uint32_t need) { return Ready(need) || AwaitSlow(need); }
  // Whether Await(need) would return true at once.
  bool Ready(uint32_t need) const noexcept {
    const uint32_t loaded = turn().loaded.Get();
    return loaded >= Count(need) && loaded != kFailed;
  }

  // Says that the first `steps` steps are computed.
  void Computed(uint32_t steps) noexcept { turn().computed.Set(steps); }

  // Whether the loader may be reading. Only while no inference runs.
  bool Busy() const noexcept { return finished_.Get() != started_count_; }

  // Gives up loading: waiting threads return at once, the loader stops after the current read. Any thread may call.
  void Interrupt() noexcept {
    interrupted_ = true;
    turn().loaded.Set(kFailed);
  }
  // The same, and after return no further read begins before the next inference: the arena's memory may go. Does not wait for
  // reads in flight.
  void Halt() noexcept {
    Interrupt();
    beginning_.WaitEqual(0);
  }

  // Waits for the rest of the loads of this inference; false: interrupted. Throws StorageError if one failed, or if the
  // file was changed since opening and anything was read: outputs may be wrong.
  bool Finish();
  // Whether inferences from now on are followed by the first loads of the next one; by default they are.
  void ReadAhead(bool reading) noexcept { reading_ahead_ = reading; }
  // Gives up reading ahead, and waits for reads in flight: from now on until the next inference the arena may be written to,
  // where nothing stays. Only while no inference runs.
  void GiveUpAhead() noexcept;
  // Gives up loads that have not started, and waits for the current one. The next inference starts afresh: the arena's
  // bytes count for nothing.
  void Abort() noexcept;

  // Throws StorageError if the file was changed since opening.
  void RequireUnchanged() const;

  // Of the last finished inference, with reads ahead of it.
  const Counts& counts() const noexcept { return turn().counts; }
  // Since the loader was made.
  uint64_t total_bytes() const noexcept { return total_bytes_.load(std::memory_order_relaxed); }

 private:
  // Values of Turn::loaded: so many loads are complete, and one more while the next load is being prepared.
  static constexpr uint32_t Count(uint32_t loads) noexcept { return 2 * loads; }
  static constexpr uint32_t kPreparing = 1;
  static constexpr uint32_t kFailed = UINT32_MAX;
  static constexpr uint32_t kAborted = UINT32_MAX;  // value of Turn::computed
  static constexpr int kUnprepared = -2;            // next to the errors of a source
  static constexpr int kUndelivered = -3;
  static constexpr int kGivenUp = -1;               // next to those of a preparer

  // A failure; written by the loader thread before Turn::loaded says kFailed, unless that was an interruption.
  struct Failure {
    int error = 0;  // of the source, kUnprepared or kUndelivered; 0: loading was given up
    uint64_t load = 0;
    uint64_t offset = 0;
  };

  // One inference. While one is computed the next is read ahead, and the loader thread may still look at the one
  // before, for whose last steps it waited: the turns of several inferences are used in rotation.
  struct Turn {
    Counter loaded, computed;
    Counts counts;
    Failure failure;
    std::span<const Load> loads;
    bool filling = false;  // nothing is computed
    bool last = false;     // nothing is read ahead after this turn
    std::vector<LoadSpans> ahead;  // when the loads that are read ahead ran

    void Clear(std::span<const Load> now) noexcept {
      loaded.Set(0);
      computed.Set(0);
      counts = {};
      failure = {};
      loads = now;
      filling = false;
      std::ranges::fill(ahead, LoadSpans{});
    }
  };
  static constexpr uint32_t kTurns = 4;  // a power of two: inferences are counted modulo 2^32
  Turn& turn() const noexcept { return *turn_.load(std::memory_order_relaxed); }
  Turn& TurnOf(uint32_t inference) noexcept { return turns_[inference % kTurns]; }

  // A part of a load that is being read; without bytes, the end of one whose bytes are all there, or were begun before.
  struct Read {
    uint32_t load = 0;
    Turn* turn = nullptr;

    const Load& of() const noexcept { return turn->loads[load]; }
    LoadSpans* spans = nullptr;
    uint64_t at = 0, nbytes = 0;  // in the load
    bool last = false;            // of its load
    uint32_t behind = 0;          // goes to its place after so many steps, on a device
    int64_t begin = 0;            // MonotonicNs
  };

  void Reset() noexcept;
  void AwaitIdleAborted() noexcept;
  void Begin(std::span<LoadSpans> spans, bool filling);
  bool AwaitSlow(uint32_t need);
  bool interrupted() const noexcept { return interrupted_.load(std::memory_order_relaxed); }
  void AwaitIdle() noexcept { finished_.WaitEqual(started_count_); }
  bool CheckFailure() const;  // false: interrupted; throws otherwise
  void Main(const CpuSet& cpus) noexcept;
  // One inference, and reading ahead for the next. Errors are left in the turns.
  void RunLoads(Turn& turn, Turn& next) noexcept;
  // In the first inference: begins to read, ahead of its turn, a chunk of a load from `j` on that stays where the read goes, as
  // the place is free. False: there is none, or enough is in flight.
  bool BeginEarly(uint32_t j, Turn& turn) noexcept;
  // Begins to read a chunk, when fewer reads are in flight. False: given up.
  bool BeginChunk(const Read& read) noexcept;
  // Begins the rest of load `j`, and ends earlier reads meanwhile. False: given up.
  bool BeginLoad(uint32_t j, Turn& turn, LoadSpans* spans, uint32_t behind) noexcept;
  // Until `turn` has computed `steps` steps, for load `j` of turn `own`: ends reads meanwhile, and begins reads of loads that
  // stay. False: given up.
  bool AwaitComputed(Turn& turn, uint32_t steps, uint32_t j, Turn& own) noexcept;
  // How often a thread that waits for this loader, or the loader itself, looks before sleeping.
  void Spin(int spins) noexcept;
  // With a core of its own: looks for a while, until the oldest read has ended or `enough()`.
  template <typename Enough>
  void PollReads(Enough enough) noexcept;
  // Where a read goes; nullptr: refused.
  std::byte* TargetOf(const Read& read) noexcept;
  // Copies the bytes of a read to their place. False: refused.
  bool Bring(const Read& read) noexcept;
  // Tells threads that wait for loads of this inference that no more will come, and ends all reads.
  void Fail(Turn& turn, const Failure& failure) noexcept;
  // The same after reads in flight: the previous inference may wait for some of these. False.
  bool GiveUp(Turn& turn, const Failure& failure) noexcept;
  // Ends the oldest read, and says so if that was the end of its load. False: it failed, or loading is given up.
  bool EndRead() noexcept;
  // Whether the oldest read can be ended at once, and should be before another begins.
  bool OldestReady() const noexcept;
  bool EnoughInFlight(uint64_t nbytes) const noexcept;
  LoadSpans* SpanOf(uint32_t j, Turn& turn) noexcept;
  // Whether the times of load `j` are noted apart until its turn is finished: the load may run before the turn begins.
  bool IsNotedAhead(uint32_t j) const noexcept { return j < ahead_end_ && (loads_[j].ahead || loads_[j].cold >= 0); }
  // Where a load reads to. Where this thread copies, read bytes should still be in the caches when they are prepared.
  uint64_t ReadPlace(const Load& load) const noexcept {
    return load.apart < 0 || !file_.queued() ? load.target : static_cast<uint64_t>(load.apart);
  }
  bool ReadsApart(const Load& load) const noexcept { return ReadPlace(load) != load.target; }
  // Whether a load reads once and for all to a place of its own, which is free from the start.
  bool IsReadOnce(const Load& load) const noexcept {
    return load.kept || (load.pinned && load.after == 0 && (!load.prepared || ReadsApart(load)));
  }
  static bool Stays(const Load& load) noexcept { return load.kept || load.pinned; }
  bool IsFirst(const Turn& turn) const noexcept { return !first_.empty() && turn.loads.data() == first_.data(); }
  // Whether a load, not of the first inference, prepares bytes that the first inference has read.
  bool IsThereCold(const Load& load) const noexcept { return load.cold >= 0 && resident_; }
  // Whether the first read of a load would lie where one that is not complete has bytes to be prepared.
  bool Shares(const Load& load) const noexcept;
  // Prepares a load after its last read, if needed. False: preparing failed, which is noted, or loading is given up.
  bool Prepare(const Read& read, Failure* failure) noexcept;
  // Prepares a part of a load, in a thread that waits for the first `need` loads of `turn`. False: there is none.
  bool HelpPrepare(Turn& turn, uint32_t need) noexcept;
  int PreparePart(uint32_t part) noexcept;
  // Ends all reads; false: one failed, or loading is given up.
  bool Drain() noexcept;
  // Whether load `j` has nothing to do: its weights are in the arena, in the form for later inferences.
  bool Resident(uint32_t j) const noexcept { return loads_[j].pinned && resident_ && (loads_[j].cold < 0 || j < warm_); }
  // Says that the first `count` loads are complete, and the following ones that have nothing to do.
  void Loaded(Turn& turn, uint32_t count) noexcept;

  WeightsFile& file_;
  std::atomic<int> begun_on_{-1};  // the core that the last inference began on; orders nothing
  const bool own_core_, apart_;
  bool helping_ = true;
  Delivery* delivery_ = nullptr;

  // Set by Open while the thread is idle.
  std::span<const Load> loads_, first_;
  Places arena_;
  FreshPages fresh_;
  Preparer* preparer_ = nullptr;
  uint32_t ahead_end_ = 0;   // the loads before this one are read ahead, or pinned
  bool all_pinned_ = false;

  // The thread's own, and of Open and Abort while the thread is idle.
  InFlight<Read> reads_;
  uint64_t in_flight_nbytes_ = 0;
  int64_t read_end_ = 0;     // MonotonicNs of the last read's end
  int64_t sleepy_until_ = 0;  // MonotonicNs before which the thread does not poll
  bool resident_ = false;    // weights that stay are in the arena
  uint32_t warm_ = 0;        // the loads before this one have prepared weights of the first inference
  bool lost_ = false;        // or could not, and overwrote the stored form
  uint32_t early_load_ = 0;  // loads that stay before this one are read, or begun ahead of their turn
  uint64_t early_at_ = 0;    // so many bytes of this one, too
  uint32_t read_ahead_ = 0;  // loads of the next inference that are complete

  // Of the thread that computes.
  Turn turns_[kTurns];
  Atomic<Turn*> turn_ = &turns_[0];  // of the current or the last inference; other threads may only interrupt
  enum class Stage : uint8_t { kEmpty, kCold, kFilled };  // the arena, after the finished inferences
  Stage stage_ = Stage::kEmpty;
  bool reading_ahead_ = true;
  uint32_t started_count_ = 0;

  // The work of preparing, written before other threads may steal parts.
  uint32_t preparing_ = 0;  // the load
  bool to_the_end_ = false;  // unless the arena goes: the stored form is overwritten
  SharedWork preparation_;

  std::span<LoadSpans> spans_;  // set by Start before started_ rises
  Counter started_, finished_;  // inferences, counted modulo 2^32; equal when the thread is idle
  Counter beginning_;           // 1 while a read is begun, unless loading was given up before
  Atomic<bool> abort_{false};
  std::atomic<uint64_t> total_bytes_{0};  // orders nothing
  Atomic<bool> stop_{false}, interrupted_{false};
  Thread thread_;  // last: the thread uses everything above
};

}  // namespace flexcomp

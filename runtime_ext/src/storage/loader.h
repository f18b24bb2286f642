// The thread that reads weights into the arena while kernels compute.
//
// Two counters order everything: load j starts when `after[j]` steps are computed, a step starts when
// `need` loads are complete. Both counts restart with every inference. The first loads of a program may be
// read ahead: behind all loads of an inference those of the next begin, after the steps of this one.
//
// Several reads are in flight at a time, so that the device does not idle between them; loads complete in their order.
// What a load has read may have to be prepared: that is done by the same thread, while the reads behind it are in flight, and
// by whoever waits for that load.
//
// The first inference may have loads of its own. What it reads of weights that it takes as they are stored is prepared from the
// arena, for the second one, behind the last step of the first that needs it: by the loader, when it has nothing to read, or at
// the latest in its turn.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counter.h"
#include "base/shared_work.h"
#include "base/sync.h"
#include "places.h"
#include "program/program.h"
#include "storage/byte_source.h"
#include "storage/delivery.h"
#include "storage/fresh_pages.h"
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
    int64_t help_ns = 0;     // of who waited for it
  };

  // Runs on these cores; empty: wherever the system likes. `own_core`: nobody else wants the core that the loader runs on.
  // `apart`: when an inference begins on the core that the loader is on, that goes to another one. Left alone, the system of a
  // virtual machine lets both take turns there for some milliseconds: a core that sleeps looks taken by others to it.
  Loader(WeightsFile& file, const CpuSet& cpus, bool own_core, bool apart = false);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Whether whoever waits does something meanwhile; it does unless told otherwise.
  void LetHelp(bool helping) noexcept { helping_ = helping; }
  // Who brings what is read to its place, which is a device's, behind steps that are counted when they are issued. Before anything
  // is read.
  void Deliver(Delivery* delivery) noexcept { delivery_ = delivery; }

  // Finds the memory that opening so many loads takes.
  void Reserve(size_t loads);
  // From now on these are the loads, into this arena, which holds nothing yet. Not while anything is read. There must be
  // room for them; those of which none is read ahead need none. `preparer` is for those that prepare what they read. `first` are
  // those of the first inference, as many, if they are others.
  void Open(std::span<const Load> loads, Places arena, FreshPages fresh = {}, Preparer* preparer = nullptr,
            std::span<const Load> first = {}) noexcept;

  // Begins the loads of one inference, as far as they were not read ahead. `spans` is empty, or has a place for
  // every load, where it is noted when it ran; those of the loads read ahead are there after Finish.
  void Start(std::span<LoadSpans> spans) { Begin(spans, false); }
  // Begins an inference that computes nothing: of its loads those run that bring what stays. Not where all of it is there.
  void StartFilling() {
    if (stage_ == Stage::kCold) GiveUpAhead();  // the thread looks at the turn that this changes
    Begin({}, true);
  }
  // Whether the next inference is a first one, which has loads of its own. Only while no inference runs, as for those below.
  bool StartsCold() const noexcept { return stage_ == Stage::kEmpty && !first_.empty(); }
  // Whether what stays is in the arena as all later inferences take it.
  bool Filled() const noexcept { return stage_ == Stage::kFilled; }
  // Whether all weights are in the arena, and stay there.
  bool Resident() const noexcept { return all_pinned_ && Filled(); }

  // Waits until `need` loads are complete, and prepares a part of them meanwhile, or reads it where reads are copies, or makes
  // pages of the arena exist; false: the loads were interrupted. Throws StorageError if one failed.
  bool Await(uint32_t need) { return Ready(need) || AwaitSlow(need); }
  // Whether Await(need) would return true at once.
  bool Ready(uint32_t need) const noexcept {
    const uint32_t loaded = turn().loaded.Get();
    return loaded >= Count(need) && loaded != kFailed;
  }

  // Says that the first `steps` steps are computed.
  void Computed(uint32_t steps) noexcept { turn().computed.Set(steps); }

  // Whether it may be reading. Only while no inference runs.
  bool Busy() const noexcept { return finished_.Get() != started_count_; }

  // Gives up loading: whoever waits for loads is told at once, the loader stops after the read that runs. Any thread
  // may call it.
  void Interrupt() noexcept {
    interrupted_ = true;
    turn().loaded.Set(kFailed);
  }
  // The same, and when it returns no further read begins before the next inference: the arena's memory may go. Waits for none
  // that was begun.
  void Halt() noexcept {
    Interrupt();
    beginning_.WaitEqual(0);
  }

  // Waits for the rest of the loads of this inference; false: interrupted. Throws StorageError if one failed, or if the
  // file was changed since it was opened and anything was read: what was computed may be wrong.
  bool Finish();
  // Whether behind the inferences that begin from now on the first loads of the next one are read ahead; they are, unless told
  // otherwise.
  void ReadAhead(bool reading) noexcept { reading_ahead_ = reading; }
  // Gives up what is read ahead, and waits for reads that run: from now on until the next inference the arena may be written to,
  // where nothing stays. Only while no inference runs.
  void GiveUpAhead() noexcept;
  // Gives up the loads that have not started and waits for the one that has. The next inference starts afresh:
  // what is in the arena counts for nothing.
  void Abort() noexcept;

  // Throws StorageError if the file was changed since it was opened.
  void RequireUnchanged() const;

  // For the inference that was finished last, including what was read ahead for it.
  const Counts& counts() const noexcept { return turn().counts; }
  // Since the loader came to life, whatever for.
  uint64_t total_bytes() const noexcept { return total_bytes_.load(std::memory_order_relaxed); }

 private:
  // Values of Turn::loaded: so many loads are complete, and one more if what the next has read is being prepared.
  static constexpr uint32_t Count(uint32_t loads) noexcept { return 2 * loads; }
  static constexpr uint32_t kPreparing = 1;
  static constexpr uint32_t kFailed = UINT32_MAX;
  static constexpr uint32_t kAborted = UINT32_MAX;  // value of Turn::computed
  static constexpr int kUnprepared = -2;            // beside the errors of a source
  static constexpr int kUndelivered = -3;
  static constexpr int kGivenUp = -1;               // beside those of a preparer

  // What went wrong; written by the loader thread before Turn::loaded says kFailed, unless that was an interruption.
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
    bool last = false;     // nothing is read ahead behind it
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
    uint32_t behind = 0;          // so many steps it comes to its place, where a device says when
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
  // One inference, and what is read ahead for the next. Errors are left in the turns.
  void RunLoads(Turn& turn, Turn& next) noexcept;
  // In the first inference: begins to read, ahead of its turn, a chunk of a load, from `j` on, that stays in the arena where it is
  // read, as its place is free. False: there is none, or enough is in flight.
  bool BeginEarly(uint32_t j, Turn& turn) noexcept;
  // Begins to read a chunk, when there is room in flight for it. False: given up.
  bool BeginChunk(const Read& read) noexcept;
  // Begins what remains of load `j`, and ends reads that were begun, until all of it is begun. False: given up.
  bool BeginLoad(uint32_t j, Turn& turn, LoadSpans* spans, uint32_t behind) noexcept;
  // Until `turn` has computed `steps` steps, for load `j` of turn `own`: ends reads meanwhile, and begins those of loads that stay. False:
  // given up.
  bool AwaitComputed(Turn& turn, uint32_t steps, uint32_t j, Turn& own) noexcept;
  // How often whoever waits for this loader, or the loader for them, looks before sleeping.
  void Spin(int spins) noexcept;
  // With a core of its own: looks for a while, until the oldest read has ended or `enough()`.
  template <typename Enough>
  void PollReads(Enough enough) noexcept;
  // Where a read goes; nullptr: refused.
  std::byte* TargetOf(const Read& read) noexcept;
  // Brings what a read has read to its place. False: refused.
  bool Bring(const Read& read) noexcept;
  // Tells whoever waits for loads of this inference that none comes any more, and ends all reads.
  void Fail(Turn& turn, const Failure& failure) noexcept;
  // The same behind reads that were begun: the inference before it may wait for some of them. False.
  bool GiveUp(Turn& turn, const Failure& failure) noexcept;
  // Ends the oldest read, and says so if that was the end of its load. False: it failed, or loading is given up.
  bool EndRead() noexcept;
  // Whether the oldest read can be ended at once, and it is time for that before another is begun.
  bool OldestReady() const noexcept;
  bool EnoughInFlight(uint64_t nbytes) const noexcept;
  LoadSpans* SpanOf(uint32_t j, Turn& turn) noexcept;
  // Whether when load `j` ran is noted beside its turn until that is finished: it may run before that is begun.
  bool IsNotedAhead(uint32_t j) const noexcept { return j < ahead_end_ && (loads_[j].ahead || loads_[j].cold >= 0); }
  // Where a load reads to. Where this thread copies, what it reads is to be in the caches when it is prepared.
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
  // Whether a load, not of the first inference, prepares what that one has read.
  bool IsThereCold(const Load& load) const noexcept { return load.cold >= 0 && resident_; }
  // Whether the first read of a load would lie where one that is not complete has bytes to be prepared.
  bool Shares(const Load& load) const noexcept;
  // Prepares what a load has read, of which this was the last, if it has to be. False: it failed, which is noted, or loading
  // is given up.
  bool Prepare(const Read& read, Failure* failure) noexcept;
  // A part of what the loader prepares, for somebody who waits for the first `need` loads of `turn`. False: there is none.
  bool HelpPrepare(Turn& turn, uint32_t need) noexcept;
  int PreparePart(uint32_t part) noexcept;
  // Ends all reads; false: one failed, or loading is given up.
  bool Drain() noexcept;
  // Whether load `j` brings nothing: its weights are in the arena, as later inferences take them.
  bool Resident(uint32_t j) const noexcept { return loads_[j].pinned && resident_ && (loads_[j].cold < 0 || j < warm_); }
  // Says that the first `count` loads are complete, and those behind them that bring nothing.
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
  uint32_t ahead_end_ = 0;   // the loads before it are read ahead, or pinned
  bool all_pinned_ = false;

  // The thread's own, and of Open and Abort while it is idle.
  InFlight<Read> reads_;
  uint64_t in_flight_nbytes_ = 0;
  int64_t read_end_ = 0;     // MonotonicNs of the last read's end
  int64_t sleepy_until_ = 0;  // MonotonicNs before which it does not poll
  bool resident_ = false;    // what stays is in the arena
  uint32_t warm_ = 0;        // the loads before it have prepared what a first inference read
  bool lost_ = false;        // or could not, and wrote over it
  uint32_t early_load_ = 0;  // of those that stay, the ones before it are read, or begun ahead of their turn
  uint64_t early_at_ = 0;    // so many bytes of it, too
  uint32_t read_ahead_ = 0;  // loads of the next inference that are complete

  // Of the thread that computes.
  Turn turns_[kTurns];
  Atomic<Turn*> turn_ = &turns_[0];  // of the current or the last inference; others may only interrupt it
  enum class Stage : uint8_t { kEmpty, kCold, kFilled };  // the arena, behind the inferences that were finished
  Stage stage_ = Stage::kEmpty;
  bool reading_ahead_ = true;
  uint32_t started_count_ = 0;

  // What is prepared, written before it is offered.
  uint32_t preparing_ = 0;  // the load
  bool to_the_end_ = false;  // unless the arena goes: what it is prepared from is written over
  SharedWork preparation_;

  std::span<LoadSpans> spans_;  // set by Start before started_ rises
  Counter started_, finished_;  // inferences, counted modulo 2^32; equal when the thread is idle
  Counter beginning_;           // 1 while a read is begun, unless it was seen before that loading is given up
  Atomic<bool> abort_{false};
  std::atomic<uint64_t> total_bytes_{0};  // orders nothing
  Atomic<bool> stop_{false}, interrupted_{false};
  Thread thread_;  // last: it uses everything above
};

}  // namespace flexcomp

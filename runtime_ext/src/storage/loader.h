// The thread that follows tapes (program/tape.h): reads weights into the arena, and copies and prepares weights there, while
// kernels compute.
//
// Two counts order everything: an operation begins when so many steps are computed, a step when so many operations are complete.
// Both go on from inference to inference. Several reads are in flight at a time, so that the device does not idle between reads;
// operations complete in the order of the tape. The same thread prepares weights while later reads are in flight, and threads that
// wait for the weights help.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counter.h"
#include "base/progress.h"
#include "base/shared_work.h"
#include "base/sync.h"
#include "memory/fresh_pages.h"
#include "memory/places.h"
#include "program/tape.h"
#include "storage/byte_source.h"
#include "storage/delivery.h"
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
    int64_t busy_ns = 0;  // in which a read was in flight, until the loader noted its end: with preparing meanwhile
    uint64_t prepared_bytes = 0;  // of weights in the kernels' form, made of read bytes
    int64_t prepare_ns = 0;  // of the loader
    int64_t help_ns = 0;     // of threads that waited

    Counts& operator+=(const Counts& other) noexcept;
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

  // From now on notes when operations run, of each tape the first `most`; finds the memory for that. While nothing is read.
  void NoteTimes(size_t most);
  // From now on inferences do these tapes, in this arena, which holds nothing yet, and whose working range has so many bytes. Not
  // while anything is read. `preparer` may be missing where no tape prepares.
  void Open(const Tapes& tapes, Places arena, uint64_t working, FreshPages fresh = {}, Preparer* preparer = nullptr) noexcept;

  // Begins an inference.
  void Start() noexcept;
  // Begins the rest of what stays, without computing. Only while no inference runs, and not if Filled().
  void StartFilling() noexcept;
  // The tape of the next inference; of the one that runs, between Start and Finish. Of the thread that computes, as the next two.
  const Tape& tape() const noexcept { return *at_.tape; }
  // Whether the weights that stay are in the arena, in the form for all later inferences.
  bool Filled() const noexcept { return at_.tape == &tapes_.steady; }
  // Whether the weights that stay are there, but some are to be prepared for later inferences.
  bool Settles() const noexcept { return at_.tape == &tapes_.second; }
  // Whether all weights are in the arena, and stay there.
  bool Resident() const noexcept { return Filled() && at_.tape->operations.empty(); }

  // Waits until the first `need` operations are complete, and helps meanwhile; false: interrupted. Throws StorageError if one
  // failed.
  bool Await(uint32_t need) { return Ready(need) || AwaitSlow(need); }
  // Whether Await(need) would return true at once.
  bool Ready(uint32_t need) const noexcept { return loaded_.Reached(at_.operations + need); }

  // The first `steps` steps are computed.
  void Computed(uint32_t steps) noexcept { computed_.Advance(at_.steps + steps); }

  // Whether it may be reading. Only while no inference runs.
  bool Busy() const noexcept { return finished_.Get() != started_count_; }

  // Gives up loading: threads that wait are told at once, the loader stops after the read that runs. That counts for the call in
  // progress, whatever the loader does, until GoOn. Any thread may call either, one at a time.
  void Interrupt() noexcept {
    interrupted_ = true;
    loaded_.Stop();
  }
  void GoOn() noexcept;  // what was interrupted is given up later
  // Interrupts, and when it returns no further read begins before the next inference: the arena's memory may go. Waits for no read
  // that was begun.
  void Halt() noexcept {
    Interrupt();
    beginning_.WaitEqual(0);
  }

  // Waits for the rest of the tape; false: interrupted. Throws StorageError if an operation failed, or if the file was changed
  // since it was opened and anything was read: the outputs may be wrong.
  bool Finish();
  // Whether operations ahead run after the inferences that begin from now on; the default.
  void ReadAhead(bool reading) noexcept { reading_ahead_ = reading; }
  // Gives up operations that have not started, and waits for reads in flight: from now on until the next inference the working range
  // may be written to. Weights that stay count, unless an inference, or a filling, was interrupted that loads some of them: it may
  // have overwritten what others are made of.
  void GiveUp() noexcept {
    GiveUpLater();
    EndGivingUp();
  }
  // The two halves; the second waits. Between them nobody may use the arena.
  void GiveUpLater() noexcept;
  void EndGivingUp() noexcept {
    if (gives_up_) Settle();
  }

  // Of the last finished inference, with operations ahead of it.
  const Counts& counts() const noexcept { return Own().counts; }
  // When its operations ran, or those of one that was given up; see NoteTimes.
  std::span<const Span> times() const noexcept { return Own().times; }
  // Since the loader was made.
  uint64_t total_bytes() const noexcept { return total_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kUnprepared = -2;  // next to the errors of a source
  static constexpr int kUndelivered = -3;
  static constexpr int kGivenUp = -1;  // next to those of a preparer

  // A failure; written by the loader thread before the count is stopped, unless that was an interruption.
  struct Failure {
    int error = 0;  // of the source, kUnprepared or kUndelivered; 0: loading was given up
    uint32_t operation = 0;
    uint64_t offset = 0;
  };

  // An inference, with the counts at its beginning.
  struct Place {
    const Tape* tape = nullptr;
    uint32_t operations = 0, steps = 0;
  };
  // One inference. The next inference's record is written when the loader's thread begins with this one, and not before: where all is
  // done ahead, two inferences may begin meanwhile.
  struct Record {
    Place at;
    uint32_t steps_before = 0;  // of the inference before
    uint32_t done = 0;          // operations that were done ahead
    uint32_t passed = 0, there = 0;  // operations outside the working range: reached so far, and complete
    Counts counts;
    Failure failure;
    std::vector<Span> times;  // of operations, of as many as there is room for

    void Clear(const Place& now, uint32_t steps, uint32_t lasting) noexcept;
    const Operation& operator[](uint32_t index) const noexcept { return at.tape->operations[index]; }
  };

  // A chunk of a read in flight, or an operation that copies or prepares when all before it are complete.
  struct Pending {
    uint32_t operation = 0;
    Record* record = nullptr;
    uint64_t at = 0, nbytes = 0;  // a chunk
    bool last = false;            // completes its operation
    int64_t begin = 0;            // MonotonicNs

    const Operation& of() const noexcept { return (*record)[operation]; }
  };

  Record& RecordOf(uint32_t inference) noexcept { return records_[inference % 2]; }
  Record& Own() noexcept { return RecordOf(started_count_); }
  const Record& Own() const noexcept { return records_[started_count_ % 2]; }
  Record& Next() noexcept { return RecordOf(started_count_ + 1); }
  Place After(const Place& at) const noexcept;

  // Of the thread that computes.
  // The next inference does this tape, but for so many operations outside the working range, which are complete.
  void BeginAnew(const Tape& tape, uint32_t there) noexcept;
  void Settle() noexcept;
  bool AwaitSlow(uint32_t need);
  bool CheckFailure() const;  // false: interrupted; throws otherwise
  bool HelpPrepare(uint32_t need) noexcept;

  bool interrupted() const noexcept { return interrupted_.load(std::memory_order_relaxed); }
  bool ending() const noexcept { return interrupted() || abort_.load(std::memory_order_relaxed); }

  // Of the loader's thread. A bool: false when loading is given up or has failed.
  void Main(const CpuSet& cpus) noexcept;
  bool RunTape(Record& record, uint32_t begin, uint32_t end) noexcept;
  // Waits until the operation may begin; ends reads meanwhile, and begins reads that may begin at any time.
  bool AwaitComputed(Record& record, uint32_t index) noexcept;
  // Begins to read a chunk at any time, of an operation from `index` on. False: there is none, or enough is in flight.
  bool BeginEarly(Record& record, uint32_t index) noexcept;
  bool BeginRead(Record& record, uint32_t index) noexcept;
  bool BeginChunk(const Pending& chunk) noexcept;
  // Ends operations that have arrived, and others until there is room for a read of so many bytes.
  bool MakeRoom(uint64_t nbytes) noexcept;
  bool EndOldest() noexcept;
  bool Drain() noexcept;
  int EndChunk(const Pending& chunk) noexcept;
  int Complete(const Pending& ended) noexcept;
  int CopyOrPrepare(const Pending& ended) noexcept;
  int PreparePart(uint32_t part) noexcept;
  // Tells waiting threads that no more operations will complete, and ends all reads.
  void Fail(Record& record, const Failure& failure) noexcept;
  // The same after reads in flight: the previous inference may wait for some of these. False.
  bool GiveUp(Record& record, const Failure& failure) noexcept;
  // Whether a read would write to bytes that a copy or preparation before it still needs.
  bool IsInUse(const Operation& read) const noexcept;
  bool EnoughInFlight(uint64_t nbytes) const noexcept;
  bool OldestReady() const noexcept;
  Span* TimeOf(const Pending& pending) noexcept;
  // How often a thread that waits for this loader, or the loader itself, looks before sleeping.
  void Spin(int spins) noexcept;
  // With a core of its own: looks for a while, until the oldest read has ended or `enough()`.
  template <typename Enough>
  void PollReads(Enough enough) noexcept;

  WeightsFile& file_;
  std::atomic<int> begun_on_{-1};  // the core that the last inference began on; orders nothing
  const bool own_core_, apart_;
  bool helping_ = true;
  Delivery* delivery_ = nullptr;

  // Set by Open while the thread is idle.
  Tapes tapes_;
  Places arena_;
  uint64_t working_ = 0;
  FreshPages fresh_;
  Preparer* preparer_ = nullptr;

  Record records_[2];
  Progress loaded_, computed_;  // operations and steps; each inference counts as a step when it begins

  // The thread's own, and of BeginAnew while the thread is idle.
  static constexpr uint32_t kMostPending = 32;
  InFlight<Pending, kMostPending> pending_;
  uint32_t in_flight_ = 0;  // chunks
  uint64_t in_flight_nbytes_ = 0;
  int64_t read_end_ = 0;      // MonotonicNs of the last read's end
  int64_t sleepy_until_ = 0;  // MonotonicNs before which the thread does not poll
  bool lost_ = false;         // a preparation outside the working range was not completed: its source may be overwritten
  uint32_t early_ = 0;        // reads before this operation that may begin at any time were begun
  uint64_t early_at_ = 0;     // and so many bytes of that one

  // Of the thread that computes, and looked at before each step: not in a cache line that the loader's thread changes.
  alignas(64) Place at_{&tapes_.first};  // of the current inference, or the next one where none runs
  uint32_t started_count_ = 0;
  bool reading_ahead_ = true;
  bool gives_up_ = false;  // EndGivingUp is to come

  // The work of preparing, written before other threads may steal parts.
  alignas(64) const Operation* preparing_ = nullptr;
  SharedWork preparation_;

  bool last_[2] = {};  // of an inference and the next one: nothing is done ahead after it; set before started_ rises
  Counter started_, finished_;  // inferences, counted modulo 2^32; equal when the thread is idle
  Counter beginning_;           // 1 while a read begins, unless giving up was seen before
  Atomic<bool> abort_{false};
  std::atomic<uint64_t> total_bytes_{0};  // orders nothing
  Atomic<bool> stop_{false}, interrupted_{false};
  Thread thread_;  // last: it uses everything above
};

}  // namespace flexcomp

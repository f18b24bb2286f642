#include "storage/loader.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace flexcomp {
namespace {

// One read, and all that are in flight: enough to keep a device busy, which with reads of 64 KiB takes four or more
// at a time; no more, so that giving up or a failing device is noticed soon.
constexpr uint64_t kReadChunk = 1 << 20;
constexpr uint64_t kMostBytesInFlight = 2 << 20;

// Looks before sleeping, where that takes nothing from anybody: some hundred microseconds. Waking up takes some fifty, and
// plans for the smallest budgets wait hundreds of times in an inference.
constexpr int kManySpins = 20000;
// The same for reads: while the loader slept through the end of one, the device would have nothing to do. Longer than a read
// takes where it matters.
constexpr int64_t kPollNs = 3'000'000;
constexpr int kPausesPerPoll = 16;
// Where others want the core after all, the system stops those most who never sleep: a time slice passes between two looks.
// For a while everyone sleeps soon then. With twenty busy processes on two cores MobileNetV2 took 14 ms in 4 MB instead of 55.
constexpr int64_t kStoppedNs = 200'000, kSleepyNs = 50'000'000;

// The loads before this one are read ahead, or pinned.
uint32_t AheadEnd(std::span<const Load> loads) noexcept {
  const auto streamed = std::ranges::find_if(loads, [](const Load& load) { return !load.ahead && !load.pinned; });
  auto end = static_cast<uint32_t>(streamed - loads.begin());
  while (end > 0 && !loads[end - 1].ahead && loads[end - 1].cold < 0) --end;
  return end;
}

}  // namespace

Loader::Loader(WeightsFile& file, const CpuSet& cpus, bool own_core, bool apart)
    : file_(file), own_core_(own_core), apart_(apart), thread_([this, cpus] { Main(cpus); }) {
  if (own_core) Spin(kManySpins);
}

void Loader::Spin(int spins) noexcept {
  for (Turn& turn : turns_) {
    turn.loaded.SpinFor(spins);
    turn.computed.SpinFor(spins);
  }
}

Loader::~Loader() {
  Abort();
  stop_ = true;  // not before: the thread may not have seen yet that an inference began, and Abort waits for its end
  started_.Set(started_count_ + 1);
  thread_.join();
}

void Loader::Reserve(size_t loads) {
  for (Turn& turn : turns_) turn.ahead.reserve(loads);
}

void Loader::Open(std::span<const Load> loads, Places arena, FreshPages fresh, Preparer* preparer,
                  std::span<const Load> first) noexcept {
  loads_ = loads;
  first_ = first;
  arena_ = arena;
  fresh_ = fresh;
  preparer_ = preparer;
  ahead_end_ = AheadEnd(loads);
  all_pinned_ = std::ranges::all_of(loads, &Load::pinned);
  for (Turn& turn : turns_) turn.ahead.assign(ahead_end_, {});
  Reset();
}

void Loader::Reset() noexcept {
  resident_ = false;
  lost_ = false;
  warm_ = 0;
  early_load_ = 0;
  early_at_ = 0;
  stage_ = Stage::kEmpty;
  read_ahead_ = 0;
  for (Turn& turn : turns_) {
    turn.loaded.Set(0);
    turn.computed.Set(0);
    turn.failure = {};
    turn.loads = loads_;
    if (&turn != &this->turn()) turn.counts = {};
  }
}

void Loader::Begin(std::span<LoadSpans> spans, bool filling) {
  spans_ = spans;
  interrupted_ = false;
  if (Resident() && turn().loaded.Get() != kFailed) {  // the thread need not wake up
    turn().counts = {};
    return;
  }
  turn_ = &TurnOf(++started_count_);
  turn().last = !reading_ahead_;
  // The loader was idle in these cases: nothing was read ahead.
  if (filling) turn().filling = true;
  else if (StartsCold()) turn().loads = first_;
  // The turn after this one, which was used for an old inference before.
  TurnOf(started_count_ + 1).Clear(loads_);
  if (apart_) begun_on_.store(::sched_getcpu(), std::memory_order_relaxed);
  started_.Set(started_count_);
}

bool Loader::AwaitSlow(uint32_t need) {
  Turn& now = turn();
  const auto help = [&] { return helping_ && (file_.Help() || HelpPrepare(now, need) || fresh_.PopulateSome()); };
  return now.loaded.WaitAtLeast(Count(need), help) != kFailed || CheckFailure();
}

bool Loader::Finish() {
  const bool complete = turn().loaded.WaitAtLeast(Count(static_cast<uint32_t>(loads_.size()))) != kFailed || CheckFailure();
  // One check after all reads is enough: nobody has used the outputs yet. An interrupted inference may have outputs, too.
  if (!complete || turn().counts.bytes > 0) RequireUnchanged();
  if (!complete) return false;
  if (!spans_.empty())
    for (uint32_t j = 0; j < ahead_end_; ++j)
      if (IsNotedAhead(j)) spans_[j] = turn().ahead[j];
  stage_ = StartsCold() && !turn().filling ? Stage::kCold : Stage::kFilled;
  return true;
}

void Loader::AwaitIdleAborted() noexcept {
  abort_ = true;
  turn().computed.Set(kAborted);
  AwaitIdle();
  abort_ = false;
  if (delivery_ != nullptr) delivery_->Settle();
}

void Loader::Abort() noexcept {
  AwaitIdleAborted();
  Reset();
}

void Loader::GiveUpAhead() noexcept {
  AwaitIdleAborted();
  if (lost_) return Reset();
  read_ahead_ = 0;
  TurnOf(started_count_ + 1).Clear(loads_);
}

bool Loader::CheckFailure() const {
  const Failure& failure = turn().failure;
  if (interrupted() || failure.error == 0) return false;
  if (failure.error == kUndelivered) delivery_->Throw();
  RequireUnchanged();  // the better reason
  if (failure.error == ByteSource::kChanged)
    RaiseError("StorageError", "the weights file ", file_.path(), " no longer holds what was verified when it was opened, at byte ",
               failure.offset, " of the data section or behind it (load ", failure.load, "): open the model again");
  if (failure.error == kUnprepared)
    RaiseError("ExecutionError", "preparing weights failed (load ", failure.load, "): ", preparer_->Fault(failure.load));
  RaiseError("StorageError", "reading the weights file ", file_.path(), " failed at byte ", failure.offset,
             " of the data section (load ", failure.load, "): ", ErrnoText(failure.error));
}

void Loader::RequireUnchanged() const {
  const int error = file_.Check();
  if (error == ByteSource::kChanged)
    RaiseError("StorageError", "the weights file ", file_.path(), " was changed while the session had it open: open the model again");
  if (error != 0) RaiseError("StorageError", "cannot look at the weights file ", file_.path(), ": ", ErrnoText(error));
}

void Loader::Main(const CpuSet& cpus) noexcept {
  if (!cpus.empty()) cpus.ApplyToThisThread();
  // One by one: where all is read ahead, an inference may begin and end, and the next one begin, before this thread
  // wakes up. Loads that were left out would count as read ahead for the next one.
  for (uint32_t inference = 1;; ++inference) {
    started_.WaitOther(inference - 1);
    if (stop_) return;
    if (apart_) StepAside(begun_on_.load(std::memory_order_relaxed));
    RunLoads(TurnOf(inference), TurnOf(inference + 1));
    finished_.Set(inference);
  }
}

void Loader::RunLoads(Turn& turn, Turn& next) noexcept {
  const uint32_t first = std::exchange(read_ahead_, 0);
  if (turn.loaded.Get() == kFailed) return;  // reading ahead failed
  Loaded(turn, first);
  for (uint32_t j = first; j < loads_.size(); ++j) {
    const Load& load = turn.loads[j];
    if (Resident(j) || (turn.filling && !Stays(load))) continue;
    const uint32_t behind = turn.filling || load.ahead ? 0 : load.after;
    if (!turn.filling && !load.ahead && !AwaitComputed(turn, load.after, j, turn)) return;
    if (!BeginLoad(j, turn, SpanOf(j, turn), behind)) return;
  }
  if (!resident_) {
    if (!Drain()) return;
    resident_ = true;
    if (!IsFirst(turn)) warm_ = static_cast<uint32_t>(loads_.size());
  }
  if (turn.filling) {
    if (!Drain()) return;
    Loaded(turn, static_cast<uint32_t>(loads_.size()));
  }
  if (turn.last) {
    Drain();
    return;
  }
  Loaded(next, 0);
  for (uint32_t j = 0; j < ahead_end_; ++j) {
    // Stored weights that a first inference has left are prepared afterwards; the loads of later ones that do this begin.
    if (loads_[j].pinned && (loads_[j].cold < 0 || !IsFirst(turn))) continue;
    const uint32_t after = loads_[j].cold >= 0 ? loads_[j].cold_after : loads_[j].after;
    if (!AwaitComputed(turn, after, j, next) || !BeginLoad(j, next, &next.ahead[j], after)) return;
  }
  if (Drain()) read_ahead_ = ahead_end_;
}

// Times of loads that may be read ahead are noted in one place, also where the first inference could not read ahead.
LoadSpans* Loader::SpanOf(uint32_t j, Turn& turn) noexcept {
  return IsNotedAhead(j) ? &turn.ahead[j] : spans_.empty() ? nullptr : &spans_[j];
}

bool Loader::AwaitComputed(Turn& turn, uint32_t steps, uint32_t j, Turn& own) noexcept {
  while (turn.computed.Get() < steps) {
    if (!resident_ && BeginEarly(j, turn)) continue;
    if (turn.failure.error == kUndelivered) return false;
    if (reads_.size() == 0) break;
    PollReads([&] { return turn.computed.Get() >= steps; });
    if (turn.computed.Get() < steps && !EndRead()) return false;
  }
  if (turn.computed.WaitAtLeast(steps) == kAborted) return Drain() && false;
  return delivery_ == nullptr || delivery_->Free(steps) || GiveUp(own, {kUndelivered, j, own.loads[j].source});
}

bool Loader::BeginEarly(uint32_t j, Turn& turn) noexcept {
  if (early_load_ < j) early_load_ = j, early_at_ = 0;
  while (early_load_ < loads_.size() && !IsReadOnce(turn.loads[early_load_])) ++early_load_;
  if (early_load_ >= loads_.size()) return false;
  const Load& load = turn.loads[early_load_];
  const uint64_t nbytes = std::min(kReadChunk, load.nbytes - early_at_);
  if (EnoughInFlight(nbytes) || interrupted()) return false;
  if (!BeginChunk({early_load_, &turn, SpanOf(early_load_, turn), early_at_, nbytes, false})) return false;
  early_at_ += nbytes;
  if (early_at_ == load.nbytes) ++early_load_, early_at_ = 0;
  return true;
}

bool Loader::BeginLoad(uint32_t j, Turn& turn, LoadSpans* spans, uint32_t behind) noexcept {
  const Load& load = turn.loads[j];
  const bool there = IsThereCold(load) || (IsReadOnce(load) && (resident_ || j < early_load_));
  while (!there && !ReadsApart(load) && Shares(load))
    if (!EndRead()) return false;
  uint64_t at = there ? load.nbytes : j == early_load_ ? early_at_ : 0;
  if (j >= early_load_) early_load_ = j + 1, early_at_ = 0;
  do {
    const uint64_t nbytes = std::min(kReadChunk, load.nbytes - at);
    // Arrived loads are reported before more reads begin: some file systems read within the call.
    // Nor is more begun once loading is given up: the arena's memory may be gone, and should not come back.
    while (reads_.size() > 0 && (EnoughInFlight(nbytes) || interrupted() || OldestReady()))
      if (!EndRead()) return false;
    if (!BeginChunk({j, &turn, spans, at, nbytes, at + nbytes == load.nbytes, behind})) return false;
    at += nbytes;
  } while (at < load.nbytes);
  return true;
}

bool Loader::EnoughInFlight(uint64_t nbytes) const noexcept {
  return reads_.full() || in_flight_nbytes_ + nbytes > kMostBytesInFlight;
}

bool Loader::OldestReady() const noexcept {
  const Read& oldest = reads_[0];
  // While that which is there is prepared, the device should have something to do.
  if (file_.queued() && oldest.last && oldest.of().prepared && in_flight_nbytes_ == oldest.nbytes) return false;
  return oldest.nbytes == 0 || file_.Ready();
}

bool Loader::BeginChunk(const Read& read) noexcept {
  if (read.nbytes > 0) {
    // Either this thread sees the request to stop, or the thread that requests it sees that a read begins, and waits.
    beginning_.Set(1);
    if (interrupted_) {
      beginning_.Set(0);
      return GiveUp(*read.turn, {});
    }
  }
  if (read.nbytes == 0) return reads_.Push(read), true;
  std::byte* const target = TargetOf(read);
  if (target == nullptr) {
    beginning_.Set(0);
    return GiveUp(*read.turn, {kUndelivered, read.load, read.of().source + read.at});
  }
  reads_.Push(read);
  in_flight_nbytes_ += read.nbytes;
  reads_.Newest().begin = MonotonicNs();
  file_.Begin(read.of().source + read.at, target, read.nbytes);
  beginning_.Set(0);
  return true;
}

std::byte* Loader::TargetOf(const Read& read) noexcept {
  std::byte* const place = arena_.At(ReadPlace(read.of())) + read.at;
  if (delivery_ != nullptr) return delivery_->Begin(place, read.nbytes);
  // Before the first inference has ended the arena may be fresh.
  if (!resident_) TouchPages(place, read.nbytes);
  return place;
}

bool Loader::Bring(const Read& read) noexcept {
  return delivery_ == nullptr || read.nbytes == 0 || delivery_->End(read.behind);
}

template <typename Enough>
void Loader::PollReads(Enough enough) noexcept {
  if (!own_core_) return;
  int64_t now = MonotonicNs();
  if (now < sleepy_until_) return;
  if (sleepy_until_ != 0) Spin(kManySpins);
  sleepy_until_ = 0;
  for (const int64_t give_up = now + kPollNs; !enough() && reads_[0].nbytes > 0 && !file_.Ready() && now < give_up;) {
    for (int pause = 0; pause < kPausesPerPoll; ++pause) CpuRelax();
    const int64_t before = std::exchange(now, MonotonicNs());
    if (now - before < kStoppedNs) continue;
    sleepy_until_ = now + kSleepyNs;
    return Spin(kSpins);
  }
}

bool Loader::EndRead() noexcept {
  PollReads([] { return false; });
  const Read read = reads_.Oldest();
  reads_.Pop();
  in_flight_nbytes_ -= read.nbytes;
  const int error = read.nbytes > 0 ? file_.End() : 0;
  if (read.nbytes > 0) {
    // The device began this read after serving the previous one.
    const int64_t begin = std::max(read.begin, read_end_);
    read_end_ = MonotonicNs();
    if (read.spans != nullptr) {
      if (read.at == 0) read.spans->read.begin = begin;
      read.spans->read.end = read_end_;
    }
    if (error == 0) {
      read.turn->counts.bytes += read.nbytes;
      ++read.turn->counts.reads;
      read.turn->counts.busy_ns += read_end_ - begin;
      total_bytes_.fetch_add(read.nbytes, std::memory_order_relaxed);
    }
  }
  Failure failure{error, read.load, read.of().source + read.at};
  if (error != 0 || interrupted() || abort_) {
    if (delivery_ != nullptr && read.nbytes > 0) delivery_->Drop();
  } else if (!Bring(read)) {
    failure.error = kUndelivered;
  } else if (!read.last || Prepare(read, &failure)) {
    if (!read.last) return true;
    if (delivery_ == nullptr || delivery_->Complete(read.load)) return Loaded(*read.turn, read.load + 1), true;
    failure.error = kUndelivered;
  }
  Fail(*read.turn, failure);
  return false;
}

void Loader::Fail(Turn& turn, const Failure& failure) noexcept {
  turn.failure = failure;
  turn.loaded.Set(kFailed);
  for (; reads_.size() > 0; reads_.Pop()) {
    if (reads_.Oldest().nbytes == 0) continue;
    file_.End();
    if (delivery_ != nullptr) delivery_->Drop();
  }
  in_flight_nbytes_ = 0;
}

bool Loader::GiveUp(Turn& turn, const Failure& failure) noexcept {
  if (Drain()) Fail(turn, failure);
  return false;
}

bool Loader::Drain() noexcept {
  while (reads_.size() > 0)
    if (!EndRead()) return false;
  return true;
}

void Loader::Loaded(Turn& turn, uint32_t count) noexcept {
  while (count < loads_.size() && Resident(count)) ++count;
  turn.loaded.SetUnless(kFailed, Count(count));
}

}  // namespace flexcomp

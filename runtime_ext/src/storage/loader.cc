#include "storage/loader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace flexcomp {
namespace {

// One read, and all that are in flight: enough to keep a device busy, which with reads of 64 KiB takes four or more
// at a time; no more, so that giving up or a failing device is noticed soon.
constexpr uint64_t kChunk = 1 << 20;
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

// Makes the pages of a range exist, huge ones where the arena has them. A direct read into memory that was
// never touched pays for its pages on the way and runs at a fifth of the disk's speed.
void Touch(std::byte* data, uint64_t nbytes) noexcept {
  for (uint64_t at = 0; at < nbytes; at += kPage) *static_cast<volatile std::byte*>(data + at) = std::byte{0};
}

// The loads before it are read ahead, or pinned.
uint32_t AheadEnd(std::span<const Load> loads) noexcept {
  auto end = static_cast<uint32_t>(loads.size());
  while (end > 0 && !loads[end - 1].ahead) --end;
  return end;
}

}  // namespace

Loader::Loader(WeightsFile& file, const CpuSet& cpus, bool own_core)
    : file_(file), own_core_(own_core), thread_([this, cpus] { Main(cpus); }) {
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

void Loader::Reserve(std::span<const Load> loads) {
  for (Turn& turn : turns_) turn.ahead.reserve(AheadEnd(loads));
}

void Loader::Open(std::span<const Load> loads, std::byte* arena, Preparer* preparer) noexcept {
  loads_ = loads;
  arena_ = arena;
  preparer_ = preparer;
  ahead_end_ = AheadEnd(loads);
  all_pinned_ = std::ranges::all_of(loads, &Load::pinned);
  for (Turn& turn : turns_) turn.ahead.assign(ahead_end_, {});
  Reset();
}

void Loader::Reset() noexcept {
  resident_ = false;
  finished_once_ = false;
  read_ahead_ = 0;
  for (Turn& turn : turns_) {
    turn.loaded.Set(0);
    turn.computed.Set(0);
    turn.failure = {};
    if (&turn != &this->turn()) turn.counts = {};
  }
}

void Loader::Start(std::span<Span> spans) {
  spans_ = spans;
  interrupted_ = false;
  if (all_pinned_ && finished_once_ && turn().loaded.Get() != kFailed) {  // the thread need not wake up
    turn().counts = {};
    return;
  }
  turn_ = &TurnOf(++started_count_);
  // Of the inference behind this one, which used to be one that nobody looks at any more.
  Turn& next = TurnOf(started_count_ + 1);
  next.loaded.Set(0);
  next.computed.Set(0);
  next.counts = {};
  started_.Set(started_count_);
}

bool Loader::AwaitSlow(uint32_t need) {
  return turn().loaded.WaitAtLeast(need, [this] { return file_.Help(); }) != kFailed || CheckFailure();
}

bool Loader::Finish() {
  const bool complete = turn().loaded.WaitAtLeast(static_cast<uint32_t>(loads_.size())) != kFailed || CheckFailure();
  // One look behind all reads is enough: nobody has used the outputs yet. Where it was interrupted they may be there, too.
  if (!complete || turn().counts.bytes > 0) CheckUnchanged();
  if (!complete) return false;
  if (!spans_.empty())
    for (uint32_t j = 0; j < ahead_end_; ++j)
      if (loads_[j].ahead) spans_[j] = turn().ahead[j];
  finished_once_ = true;
  return true;
}

void Loader::Abort() noexcept {
  abort_ = true;
  turn().computed.Set(kAborted);
  AwaitIdle();
  abort_ = false;
  Reset();
}

bool Loader::CheckFailure() const {
  const Failure& failure = turn().failure;
  if (interrupted() || failure.error == 0) return false;
  CheckUnchanged();  // the better reason
  if (failure.error == ByteSource::kChanged)
    RaiseError("StorageError", "the weights file ", file_.path(), " no longer holds what was verified when it was opened, at byte ",
               failure.offset, " of the data section or behind it (load ", failure.load, "): open the model again");
  if (failure.error == kUnprepared)
    RaiseError("ExecutionError", "preparing weights failed (load ", failure.load, "): ", preparer_->Fault(failure.load));
  RaiseError("StorageError", "reading the weights file ", file_.path(), " failed at byte ", failure.offset,
             " of the data section (load ", failure.load, "): ", ErrnoText(failure.error));
}

void Loader::CheckUnchanged() const {
  const int error = file_.Check();
  if (error == ByteSource::kChanged)
    RaiseError("StorageError", "the weights file ", file_.path(), " was changed while the session had it open: open the model again");
  if (error != 0) RaiseError("StorageError", "cannot look at the weights file ", file_.path(), ": ", ErrnoText(error));
}

void Loader::Main(const CpuSet& cpus) noexcept {
  if (!cpus.empty()) cpus.ApplyToThisThread();
  // One by one: where all is read ahead, an inference may begin and end, and the next one begin, before this thread
  // wakes up. What it left out would count as read ahead for the one behind.
  for (uint32_t inference = 1;; ++inference) {
    started_.WaitOther(inference - 1);
    if (stop_) return;
    RunLoads(TurnOf(inference), TurnOf(inference + 1));
    finished_.Set(inference);
  }
}

void Loader::RunLoads(Turn& turn, Turn& next) noexcept {
  const uint32_t first = std::exchange(read_ahead_, 0);
  if (turn.loaded.Get() == kFailed) return;  // reading ahead failed
  Loaded(turn, first);
  for (uint32_t j = first; j < loads_.size(); ++j) {
    const Load& load = loads_[j];
    if (Resident(j)) continue;
    if (!load.ahead && !AwaitComputed(turn, load.after)) return;
    // What is read ahead is noted in one place, whether it was or, at first, could not be.
    if (!BeginLoad(j, turn, load.ahead ? &turn.ahead[j] : spans_.empty() ? nullptr : &spans_[j])) return;
  }
  if (!resident_) {
    if (!Drain()) return;
    resident_ = true;
  }
  for (uint32_t j = 0; j < ahead_end_; ++j) {
    if (Resident(j)) continue;
    if (!AwaitComputed(turn, loads_[j].after) || !BeginLoad(j, next, &next.ahead[j])) return;
  }
  if (Drain()) read_ahead_ = ahead_end_;
}

bool Loader::AwaitComputed(const Turn& turn, uint32_t steps) noexcept {
  while (turn.computed.Get() < steps && reads_.size() > 0) {
    PollReads([&] { return turn.computed.Get() >= steps; });
    if (turn.computed.Get() < steps && !EndRead()) return false;
  }
  if (turn.computed.WaitAtLeast(steps) != kAborted) return true;
  Drain();
  return false;
}

bool Loader::BeginLoad(uint32_t j, Turn& turn, Span* span) noexcept {
  const Load& load = loads_[j];
  while (Shares(j))
    if (!EndRead()) return false;
  for (uint64_t at = 0; at < load.nbytes; at += kChunk) {
    const uint64_t nbytes = std::min(kChunk, load.nbytes - at);
    // What has arrived is said before more is begun: some file systems read while a read is begun.
    // Nor is more begun once loading is given up: the arena's memory may be gone, and should not come back.
    const auto end_one = [&] { return reads_.full() || in_flight_nbytes_ + nbytes > kMostBytesInFlight || interrupted(); };
    for (;;) {
      while (reads_.size() > 0 && (end_one() || file_.Ready()))
        if (!EndRead()) return false;
      // Either this thread sees that it is to stop, or whoever wants that sees that a read begins, and waits.
      beginning_.Set(1);
      if (!interrupted_) break;
      beginning_.Set(0);
      if (reads_.size() == 0) return Fail(turn, {}), false;
    }
    // Before the first inference has ended the arena may be fresh.
    if (!resident_) Touch(arena_ + load.target + at, nbytes);
    reads_.Push({j, &turn, span, at, nbytes, MonotonicNs(), at + nbytes == load.nbytes});
    in_flight_nbytes_ += nbytes;
    file_.Begin(load.source + at, arena_ + load.target + at, nbytes);
    beginning_.Set(0);
  }
  return true;
}

template <typename Enough>
void Loader::PollReads(Enough enough) noexcept {
  if (!own_core_) return;
  int64_t now = MonotonicNs();
  if (now < sleepy_until_) return;
  if (sleepy_until_ != 0) Spin(kManySpins);
  sleepy_until_ = 0;
  for (const int64_t give_up = now + kPollNs; !enough() && !file_.Ready() && now < give_up;) {
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
  const int error = file_.End();
  // The device turned to it when it had served the one before.
  const int64_t begin = std::max(read.begin, read_end_);
  read_end_ = MonotonicNs();
  if (read.span != nullptr) {
    if (read.at == 0) read.span->begin = begin;
    read.span->end = read_end_;
  }
  if (error == 0) {
    read.turn->counts.bytes += read.nbytes;
    ++read.turn->counts.reads;
    read.turn->counts.busy_ns += read_end_ - begin;
    total_bytes_.fetch_add(read.nbytes, std::memory_order_relaxed);
  }
  Failure failure{error, read.load, loads_[read.load].source + read.at};
  if (error == 0 && !interrupted() && !abort_ && (!read.last || Prepare(read.load, &failure))) {
    if (read.last && loads_[read.load].prepared && read.span != nullptr) read.span->end = MonotonicNs();
    if (read.last) Loaded(*read.turn, read.load + 1);
    return true;
  }
  Fail(*read.turn, failure);
  return false;
}

bool Loader::Shares(uint32_t j) const noexcept {
  const Load& load = loads_[j];
  for (uint32_t i = 0; load.prepared && i < reads_.size(); ++i) {
    const Load& other = loads_[reads_[i].load];
    if (other.prepared && other.target < load.target + load.nbytes && load.target < other.target + other.nbytes) return true;
  }
  return false;
}

bool Loader::Prepare(uint32_t j, Failure* failure) noexcept {
  if (!loads_[j].prepared) return true;
  // As of a read that is begun: whoever gives up loading waits for the end, or it does not begin.
  beginning_.Set(1);
  const bool wanted = !interrupted_;
  const bool done = wanted && preparer_->Prepare(j) == 0;
  beginning_.Set(0);
  if (wanted && !done) failure->error = kUnprepared;
  return done;
}

void Loader::Fail(Turn& turn, const Failure& failure) noexcept {
  turn.failure = failure;
  turn.loaded.Set(kFailed);
  for (; reads_.size() > 0; reads_.Pop()) file_.End();
  in_flight_nbytes_ = 0;
}

bool Loader::Drain() noexcept {
  while (reads_.size() > 0)
    if (!EndRead()) return false;
  return true;
}

void Loader::Loaded(Turn& turn, uint32_t count) noexcept {
  while (count < loads_.size() && Resident(count)) ++count;
  turn.loaded.SetUnless(kFailed, count);
}

}  // namespace flexcomp

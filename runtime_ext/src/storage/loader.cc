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

uint32_t AheadEnd(const Tape& tape) noexcept {
  return static_cast<uint32_t>(std::ranges::find_if_not(tape.operations, &Operation::ahead) - tape.operations.begin());
}

uint32_t Size(std::span<const Operation> operations) noexcept { return static_cast<uint32_t>(operations.size()); }

}  // namespace

Loader::Counts& Loader::Counts::operator+=(const Counts& other) noexcept {
  bytes += other.bytes;
  reads += other.reads;
  busy_ns += other.busy_ns;
  prepared_bytes += other.prepared_bytes;
  prepare_ns += other.prepare_ns;
  help_ns += other.help_ns;
  return *this;
}

// ------------------------------------------------------------------------------------------ the thread that computes

Loader::Loader(WeightsFile& file, const CpuSet& cpus, bool own_core, bool apart)
    : file_(file), own_core_(own_core), apart_(apart), thread_([this, cpus] { Main(cpus); }) {
  if (own_core) Spin(kManySpins);
}

Loader::~Loader() {
  GiveUp();
  stop_ = true;  // not before: the thread may not have seen yet that an inference began, and GiveUp waits for its end
  started_.Set(started_count_ + 1);
  thread_.join();
}

void Loader::Spin(int spins) noexcept {
  loaded_.SpinFor(spins);
  computed_.SpinFor(spins);
}

void Loader::NoteTimes(size_t most) {
  for (Record& record : records_) record.times.reserve(most);
}

void Loader::Open(const Tapes& tapes, Places arena, uint64_t working, FreshPages fresh, Preparer* preparer) noexcept {
  tapes_ = tapes;
  arena_ = arena;
  working_ = working;
  fresh_ = fresh;
  preparer_ = preparer;
  BeginAnew(tapes_.first, 0);
}

void Loader::Record::Clear(const Place& now, uint32_t steps, uint32_t lasting) noexcept {
  at = now;
  steps_before = steps;
  done = passed = 0;
  there = lasting;
  counts = {};
  failure = {};
  times.assign(std::min(times.capacity(), now.tape->operations.size()), {});
}

void Loader::BeginAnew(const Tape& tape, uint32_t there) noexcept {
  lost_ = false;
  loaded_.GoOn();
  at_ = {&tape, loaded_.count(), computed_.count() + 1};
  Next().Clear(at_, Next().steps_before, there);
}

Loader::Place Loader::After(const Place& at) const noexcept {
  const bool first = at.tape == &tapes_.first && !tapes_.second.steps.empty();
  return {first ? &tapes_.second : &tapes_.steady, at.operations + Size(at.tape->operations),
          at.steps + static_cast<uint32_t>(at.tape->steps.size()) + 1};
}

void Loader::Start() noexcept {
  if (Resident()) {  // the thread need not wake up
    loaded_.GoOn();
    Own().counts = {};
    return;
  }
  computed_.Advance(at_.steps);
  if (apart_) begun_on_.store(::sched_getcpu(), std::memory_order_relaxed);
  last_[++started_count_ % 2] = !reading_ahead_;
  started_.Set(started_count_);
}

void Loader::StartFilling() noexcept {
  if (at_.tape != &tapes_.first) GiveUp();
  BeginAnew(at_.tape == &tapes_.first ? tapes_.fill : tapes_.settle, Next().there);
  Start();
}

bool Loader::AwaitSlow(uint32_t need) {
  const auto help = [&] { return helping_ && (file_.Help() || HelpPrepare(need) || fresh_.PopulateSome()); };
  return loaded_.Await(at_.operations + need, help) || CheckFailure();
}

bool Loader::Finish() {
  const bool complete = (loaded_.Await(at_.operations + Size(at_.tape->operations)) && !interrupted()) || CheckFailure();
  // One check after all reads is enough: nobody has used the outputs yet. An interrupted inference may have outputs, too.
  if (!complete || Own().counts.bytes > 0) file_.RequireUnchanged();
  if (!complete) return false;
  at_ = After(at_);
  return true;
}

void Loader::GiveUpLater() noexcept {
  gives_up_ = abort_ = true;
  computed_.Stop();
  if (delivery_ != nullptr) Settle();  // the device's copies are the caller's, too
}

void Loader::GoOn() noexcept {
  if (!interrupted_) return;
  GiveUpLater();
  interrupted_ = false;
}

void Loader::Settle() noexcept {
  finished_.WaitEqual(started_count_);
  computed_.GoOn();
  abort_ = gives_up_ = false;
  if (delivery_ != nullptr) delivery_->Settle();
  const Tape& tape = *at_.tape;
  const bool begun = computed_.Reached(at_.steps);
  const auto works = [&](const Operation& operation) { return operation.to < working_; };
  const bool spoils = tape.steps.empty() || delivery_ != nullptr || !std::ranges::all_of(tape.operations, works);
  if (lost_ || (begun && spoils)) BeginAnew(tapes_.first, 0);
  else BeginAnew(tape, begun ? 0 : Next().there);
}

bool Loader::CheckFailure() const {
  const Failure& failure = Own().failure;
  if (interrupted() || failure.error == 0) return false;
  if (failure.error == kUndelivered) delivery_->Throw();
  const Operation& operation = Own()[failure.operation];
  if (failure.error != kUnprepared) file_.RaiseReadError(failure.offset, failure.error, "load " + std::to_string(operation.load));
  file_.RequireUnchanged();  // the better reason
  RaiseError("ExecutionError", "preparing weights failed (load ", operation.load, "): ", preparer_->Fault(operation));
}

bool Loader::HelpPrepare(uint32_t need) noexcept {
  // The work on offer is one of the first `need` operations if fewer are complete: operations complete in order.
  int64_t begin = 0;
  const bool helped = preparation_.Help(
      [&](uint32_t part) {
        begin = MonotonicNs();
        return PreparePart(part);
      },
      [&] { return !Ready(need); });
  if (helped) Own().counts.help_ns += MonotonicNs() - begin;
  return helped;
}

// ------------------------------------------------------------------------------------------ the loader's thread

void Loader::Main(const CpuSet& cpus) noexcept {
  if (!cpus.empty()) cpus.ApplyToThisThread();
  // One by one: where all is done ahead, an inference may begin and end, and the next one begin, before this thread
  // wakes up.
  for (uint32_t inference = 1;; ++inference) {
    started_.WaitOther(inference - 1);
    if (stop_) return;
    if (apart_) StepAside(begun_on_.load(std::memory_order_relaxed));
    Record &own = RecordOf(inference), &next = RecordOf(inference + 1);
    next.Clear(After(own.at), static_cast<uint32_t>(own.at.tape->steps.size()), 0);
    // Operations ahead may have failed.
    if (!loaded_.stopped() && RunTape(own, own.done, Size(own.at.tape->operations))) {
      const uint32_t end = last_[inference % 2] ? 0 : AheadEnd(*next.at.tape);
      if (RunTape(next, 0, end) && Drain()) next.done = end;
    }
    finished_.Set(inference);
  }
}

bool Loader::RunTape(Record& record, uint32_t begin, uint32_t end) noexcept {
  early_ = begin;
  early_at_ = 0;
  for (uint32_t index = begin; index < end; ++index) {
    const Operation& operation = record[index];
    if (operation.to >= working_ && record.passed++ < record.there) {
      if (!Drain()) return false;
      loaded_.Advance(record.at.operations + index + 1);
      continue;
    }
    if (!AwaitComputed(record, index)) return false;
    const bool reads = operation.kind == Operation::Kind::kRead;
    if (reads ? !BeginRead(record, index) : !MakeRoom(0)) return false;
    if (!reads) pending_.Push({index, &record, 0, 0, true});
  }
  return true;
}

bool Loader::AwaitComputed(Record& record, uint32_t index) noexcept {
  const Operation& operation = record[index];
  if (operation.after == Operation::kAnytime) return true;
  const uint32_t count = record.at.steps + static_cast<uint32_t>(operation.after);
  while (!computed_.Reached(count)) {
    if (BeginEarly(record, index)) continue;
    if (record.failure.error == kUndelivered) return false;
    if (pending_.size() == 0) break;
    PollReads([&] { return computed_.Reached(count); });
    if (!computed_.Reached(count) && !EndOldest()) return false;
  }
  if (!computed_.Await(count) || computed_.stopped()) return Drain() && false;
  return delivery_ == nullptr || delivery_->Free(operation.StepsBefore(record.steps_before)) || GiveUp(record, {kUndelivered, index, operation.from});
}

bool Loader::BeginEarly(Record& record, uint32_t index) noexcept {
  const std::span<const Operation> operations = record.at.tape->operations;
  if (early_ < index) early_ = index, early_at_ = 0;
  while (early_ < operations.size() && operations[early_].after != Operation::kAnytime) ++early_;
  if (early_ >= operations.size()) return false;
  const Operation& read = operations[early_];
  const uint64_t nbytes = std::min(kReadChunk, read.nbytes - early_at_);
  if (pending_.full() || EnoughInFlight(nbytes) || ending()) return false;
  if (!BeginChunk({early_, &record, early_at_, nbytes, false})) return false;
  early_at_ += nbytes;
  if (early_at_ == read.nbytes) ++early_, early_at_ = 0;
  return true;
}

bool Loader::BeginRead(Record& record, uint32_t index) noexcept {
  const Operation& read = record[index];
  const bool begun = index < early_ && read.after == Operation::kAnytime;
  uint64_t at = begun             ? read.nbytes
                : index == early_ ? early_at_
                                  : 0;
  if (index >= early_) early_ = index + 1, early_at_ = 0;
  while (at < read.nbytes && IsInUse(read))
    if (!EndOldest()) return false;
  do {
    const uint64_t nbytes = std::min(kReadChunk, read.nbytes - at);
    if (!MakeRoom(nbytes) || !BeginChunk({index, &record, at, nbytes, at + nbytes == read.nbytes})) return false;
    at += nbytes;
  } while (at < read.nbytes);
  return true;
}

bool Loader::MakeRoom(uint64_t nbytes) noexcept {
  // Arrived reads are reported before more reads begin: some file systems read within the call.
  // Nor is more begun once loading is given up: the arena's memory may be gone, and should not come back.
  while (pending_.size() > 0 && (pending_.full() || EnoughInFlight(nbytes) || ending() || OldestReady()))
    if (!EndOldest()) return false;
  return true;
}

bool Loader::IsInUse(const Operation& read) const noexcept {
  const auto meets = [&](uint64_t at, uint64_t nbytes) { return at < read.to + read.nbytes && read.to < at + nbytes; };
  for (uint32_t i = 0; i < pending_.size(); ++i) {
    const Operation& other = pending_[i].of();
    if (other.kind != Operation::Kind::kRead && (meets(other.from, other.from_nbytes) || meets(other.to, other.nbytes))) return true;
  }
  return false;
}

bool Loader::EnoughInFlight(uint64_t nbytes) const noexcept {
  return nbytes > 0 && (in_flight_ == ByteSource::kMostInFlight || in_flight_nbytes_ + nbytes > kMostBytesInFlight);
}

bool Loader::OldestReady() const noexcept {
  const Pending& oldest = pending_[0];
  if (oldest.nbytes > 0) return file_.Ready();
  // While weights are prepared, the device should have something to do.
  return oldest.of().kind == Operation::Kind::kRead || !file_.queued() || in_flight_ > 0;
}

bool Loader::BeginChunk(const Pending& chunk) noexcept {
  if (chunk.nbytes == 0) return pending_.Push(chunk), true;
  // Either this thread sees the request to stop, or the thread that requests it sees that a read begins, and waits.
  beginning_.Set(1);
  const bool given_up = abort_ || interrupted_;
  const Operation& read = chunk.of();
  std::byte* target = given_up ? nullptr : arena_.At(read.to) + chunk.at;
  if (!given_up && delivery_ != nullptr) target = delivery_->Begin(target, chunk.nbytes);
  if (target == nullptr) {
    beginning_.Set(0);
    return GiveUp(*chunk.record, given_up ? Failure{} : Failure{kUndelivered, chunk.operation, read.from + chunk.at});
  }
  const Tape* const tape = chunk.record->at.tape;
  if (delivery_ == nullptr && (tape == &tapes_.first || tape == &tapes_.fill)) TouchPages(target, chunk.nbytes);  // the arena may be fresh
  pending_.Push(chunk);
  pending_.Newest().begin = MonotonicNs();
  ++in_flight_;
  in_flight_nbytes_ += chunk.nbytes;
  file_.Begin(read.from + chunk.at, target, chunk.nbytes);
  beginning_.Set(0);
  return true;
}

template <typename Enough>
void Loader::PollReads(Enough enough) noexcept {
  if (!own_core_) return;
  int64_t now = MonotonicNs();
  if (now < sleepy_until_) return;
  if (sleepy_until_ != 0) Spin(kManySpins);
  sleepy_until_ = 0;
  for (const int64_t give_up = now + kPollNs; !enough() && pending_[0].nbytes > 0 && !file_.Ready() && now < give_up;) {
    for (int pause = 0; pause < kPausesPerPoll; ++pause) CpuRelax();
    const int64_t before = std::exchange(now, MonotonicNs());
    if (now - before < kStoppedNs) continue;
    sleepy_until_ = now + kSleepyNs;
    return Spin(kSpins);
  }
}

bool Loader::EndOldest() noexcept {
  PollReads([] { return false; });
  const Pending oldest = pending_.Oldest();
  pending_.Pop();
  const bool chunk = oldest.nbytes > 0;
  int error = chunk ? EndChunk(oldest) : 0;
  if (error != 0 || ending()) {
    if (chunk && delivery_ != nullptr) delivery_->Drop();
  } else if (chunk && delivery_ != nullptr && !delivery_->End(oldest.of().StepsBefore(oldest.record->steps_before))) {
    error = kUndelivered;
  } else if (!oldest.last) {
    return true;
  } else {
    error = Complete(oldest);
    if (error == 0) return true;
    if (error == kGivenUp) error = 0;
  }
  Fail(*oldest.record, {error, oldest.operation, oldest.of().from + oldest.at});
  return false;
}

int Loader::EndChunk(const Pending& chunk) noexcept {
  --in_flight_;
  in_flight_nbytes_ -= chunk.nbytes;
  const int error = file_.End();
  // The device began this read after serving the previous one.
  const int64_t begin = std::max(chunk.begin, read_end_);
  read_end_ = MonotonicNs();
  if (Span* const span = TimeOf(chunk)) {
    if (chunk.at == 0) span->begin = begin;
    span->end = read_end_;
  }
  if (error != 0) return error;
  Counts& counts = chunk.record->counts;
  counts.bytes += chunk.nbytes;
  ++counts.reads;
  counts.busy_ns += read_end_ - begin;
  total_bytes_.fetch_add(chunk.nbytes, std::memory_order_relaxed);
  return 0;
}

int Loader::Complete(const Pending& ended) noexcept {
  if (ended.of().kind != Operation::Kind::kRead)
    if (const int error = CopyOrPrepare(ended); error != 0) return error;
  if (delivery_ != nullptr && !delivery_->Complete(ended.operation)) return kUndelivered;
  ended.record->there += ended.of().to >= working_;
  loaded_.Advance(ended.record->at.operations + ended.operation + 1);
  return 0;
}

int Loader::CopyOrPrepare(const Pending& ended) noexcept {
  const Operation& operation = ended.of();
  Counts& counts = ended.record->counts;
  const int64_t begin = MonotonicNs();
  // As for a read: a thread that gives up loading waits for the end, or preparing does not begin.
  beginning_.Set(1);
  const bool given_up = interrupted_;
  int error = kGivenUp;
  if (!given_up && operation.kind == Operation::Kind::kCopy) {
    std::memcpy(arena_.At(operation.to), arena_.At(operation.from), operation.nbytes);
    error = 0;
  } else if (!given_up) {
    preparing_ = &operation;
    preparation_.Offer(preparer_->PartsOf(operation));
    loaded_.Wake();
    error = preparation_.Complete([this](uint32_t part) { return PreparePart(part); });
    if (error == 0) counts.prepared_bytes += operation.nbytes;
    lost_ = error != 0 && operation.to >= working_;
  }
  beginning_.Set(0);
  const int64_t end = MonotonicNs();
  counts.prepare_ns += end - begin;
  if (Span* const span = TimeOf(ended)) *span = {begin, end};
  return error > 0 ? kUnprepared : error;
}

int Loader::PreparePart(uint32_t part) noexcept {
  // Weights that stay may overwrite the stored form: unless the arena goes, their preparation ends. Of others a thread that gives up
  // loading need not wait for the parts after this one.
  const bool given_up = interrupted() || (preparing_->to < working_ && abort_.load(std::memory_order_relaxed));
  return given_up ? kGivenUp : preparer_->Prepare(*preparing_, part);
}

void Loader::Fail(Record& record, const Failure& failure) noexcept {
  record.failure = failure;
  loaded_.Stop();
  for (; pending_.size() > 0; pending_.Pop()) {
    if (pending_.Oldest().nbytes == 0) continue;
    file_.End();
    if (delivery_ != nullptr) delivery_->Drop();
  }
  in_flight_ = 0;
  in_flight_nbytes_ = 0;
}

bool Loader::GiveUp(Record& record, const Failure& failure) noexcept {
  if (Drain()) Fail(record, failure);
  return false;
}

bool Loader::Drain() noexcept {
  while (pending_.size() > 0)
    if (!EndOldest()) return false;
  return true;
}

Span* Loader::TimeOf(const Pending& pending) noexcept {
  return pending.operation < pending.record->times.size() ? &pending.record->times[pending.operation] : nullptr;
}

}  // namespace flexcomp

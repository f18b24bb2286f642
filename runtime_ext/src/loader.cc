#include "loader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "error.h"

namespace flexcomp {
namespace {

// One read. From 1 MiB on, one read at a time saturates the disks measured; smaller than that, giving up
// or a failing device is noticed soon.
constexpr uint64_t kChunk = 2 << 20;

// Makes the pages of a range exist, huge ones where the arena has them. A direct read into memory that was
// never touched pays for its pages on the way and runs at a fifth of the disk's speed.
void Touch(std::byte* data, uint64_t nbytes) noexcept {
  for (uint64_t at = 0; at < nbytes; at += kPage) *static_cast<volatile std::byte*>(data + at) = std::byte{0};
}

}  // namespace

Loader::Loader(WeightsFile& file, const CpuSet& cpus) : file_(file), thread_([this, cpus] { Main(cpus); }) {}

Loader::~Loader() {
  if (!process_.IsThisProcess()) {
    new std::thread(std::move(thread_));  // forgotten: its handle may be another thread's by now
    return;
  }
  Abort();
  stop_ = true;  // not before: the thread may not have seen yet that an inference began, and Abort waits for its end
  started_.Set(started_count_ + 1);
  thread_.join();
}

void Loader::Open(std::span<const Load> loads, std::byte* arena) {
  loads_ = loads;
  arena_ = arena;
  ahead_end_ = 0;
  all_pinned_ = true;
  for (uint32_t j = 0; j < loads.size(); ++j) {
    if (loads[j].ahead) ahead_end_ = j + 1;
    all_pinned_ &= loads[j].pinned;
  }
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
    if (&turn != turn_) turn.counts = {};
  }
}

void Loader::Start(std::span<Span> spans) {
  spans_ = spans;
  interrupted_ = false;
  if (all_pinned_ && finished_once_) {  // the thread need not wake up
    turn_->counts = {};
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

bool Loader::AwaitSlow(uint32_t need) { return turn_->loaded.WaitAtLeast(need) != kFailed || CheckFailure(); }

bool Loader::Finish() {
  if (!Await(static_cast<uint32_t>(loads_.size()))) return false;
  if (!spans_.empty())
    for (uint32_t j = 0; j < ahead_end_; ++j)
      if (loads_[j].ahead) spans_[j] = turn_->ahead[j];
  finished_once_ = true;
  return true;
}

void Loader::Abort() noexcept {
  abort_ = true;
  turn_->computed.Set(kAborted);
  AwaitIdle();
  abort_ = false;
  Reset();
}

bool Loader::CheckFailure() const {
  const Failure& failure = turn_->failure;
  if (failure.error == ECANCELED) return false;
  RaiseError("StorageError", "reading the weights file ", file_.path(), " failed at byte ", failure.offset,
             " of the data section (load ", failure.load, "): ", ErrnoText(failure.error));
}

void Loader::Main(const CpuSet& cpus) noexcept {
  if (!cpus.empty()) cpus.ApplyToThisThread();
  for (uint32_t seen = 0;;) {
    // The count may have risen before this thread came to life; it is a state, not an event.
    seen = started_.WaitOther(seen);
    if (stop_) return;
    Turn& turn = TurnOf(seen);
    if (RunLoads(turn)) ReadAhead(turn, TurnOf(seen + 1));
    finished_.Set(seen);
  }
}

bool Loader::RunLoads(Turn& turn) noexcept {
  const uint32_t first = std::exchange(read_ahead_, 0);
  if (turn.loaded.Get() == kFailed) return false;  // reading ahead failed
  for (uint32_t j = first; j < loads_.size(); ++j) {
    const Load& load = loads_[j];
    if (!(load.pinned && resident_)) {
      if (!load.ahead && turn.computed.WaitAtLeast(load.after) == kAborted) return false;
      // What is read ahead is noted in one place, whether it was or, at first, could not be.
      Span* span = load.ahead ? &turn.ahead[j] : spans_.empty() ? nullptr : &spans_[j];
      if (!RunLoad(j, turn, span)) return false;
    }
    turn.loaded.Set(j + 1);
  }
  resident_ = true;
  return true;
}

void Loader::ReadAhead(const Turn& turn, Turn& next) noexcept {
  for (read_ahead_ = 0; read_ahead_ < ahead_end_;) {
    const Load& load = loads_[read_ahead_];
    if (!load.pinned) {
      if (turn.computed.WaitAtLeast(load.after) == kAborted) return;
      if (!RunLoad(read_ahead_, next, &next.ahead[read_ahead_])) return;
    }
    next.loaded.Set(++read_ahead_);
  }
}

bool Loader::RunLoad(uint32_t j, Turn& turn, Span* span) noexcept {
  if (span != nullptr) span->begin = MonotonicNs();
  const int error = ReadLoad(loads_[j], turn);
  if (span != nullptr) span->end = MonotonicNs();
  if (error == 0) return true;
  turn.failure.error = error;
  turn.failure.load = j;
  turn.loaded.Set(kFailed);
  return false;
}

int Loader::ReadLoad(const Load& load, Turn& turn) noexcept {
  if (interrupted()) return ECANCELED;
  for (uint64_t at = 0; at < load.nbytes; at += kChunk) {
    const uint64_t nbytes = std::min(kChunk, load.nbytes - at);
    turn.failure.offset = load.source + at;
    // Before the first inference has ended the arena may be fresh.
    if (!resident_) Touch(arena_ + load.target + at, nbytes);
    if (const int error = file_.Read(load.source + at, arena_ + load.target + at, nbytes)) return error;
    turn.counts.bytes += nbytes;
    ++turn.counts.reads;
    total_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    if (interrupted() || abort_) return ECANCELED;
  }
  return 0;
}

}  // namespace flexcomp

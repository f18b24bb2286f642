#include "loader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "affinity.h"
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

Loader::Loader(WeightsFile& file, int cpu) : file_(file), thread_([this, cpu] { Main(cpu); }) {}

Loader::~Loader() {
  if (!process_.IsThisProcess()) {
    new std::thread(std::move(thread_));  // forgotten: its handle may be another thread's by now
    return;
  }
  stop_ = true;
  computed_.Set(kAborted);
  started_.Set(started_count_ + 1);
  thread_.join();
}

void Loader::Start(std::span<const Load> loads, std::byte* arena, bool pinned_resident, std::span<Span> spans) {
  loads_ = loads;
  spans_ = spans;
  arena_ = arena;
  pinned_resident_ = pinned_resident;
  first_ = 0;
  if (pinned_resident)
    while (first_ < loads.size() && loads[first_].pinned) ++first_;
  counts_ = {};
  interrupted_ = false;
  computed_.Set(0);
  loaded_.Set(first_);
  // Nothing to read: the thread need not wake up.
  if (first_ < loads.size()) started_.Set(++started_count_);
}

bool Loader::AwaitSlow(uint32_t need) { return loaded_.WaitAtLeast(need) != kFailed || CheckFailure(); }

bool Loader::Finish() {
  AwaitIdle();
  return !failed() || CheckFailure();
}

void Loader::Abort() noexcept {
  computed_.Set(kAborted);
  AwaitIdle();
}

bool Loader::CheckFailure() const {
  if (failure_.error == ECANCELED) return false;
  RaiseError("StorageError", "reading the weights file ", file_.path(), " failed at byte ", failure_.offset,
             " of the data section (load ", failure_.load, "): ", ErrnoText(failure_.error));
}

void Loader::Main(int cpu) noexcept {
  if (cpu >= 0) PinThisThread(cpu);
  for (uint32_t seen = 0;;) {
    // The count may have risen before this thread came to life; it is a state, not an event.
    seen = started_.WaitOther(seen);
    if (stop_) return;
    RunLoads();
    finished_.Set(seen);
  }
}

void Loader::RunLoads() noexcept {
  for (uint32_t j = first_; j < loads_.size(); ++j) {
    const Load& load = loads_[j];
    if (!(load.pinned && pinned_resident_)) {
      if (computed_.WaitAtLeast(load.after) == kAborted) return;
      const bool traced = !spans_.empty();
      if (traced) spans_[j].begin = MonotonicNs();
      const int error = ReadLoad(load);
      if (traced) spans_[j].end = MonotonicNs();
      if (error != 0) {
        failure_.error = error;
        failure_.load = j;
        loaded_.Set(kFailed);
        return;
      }
    }
    loaded_.Set(j + 1);
  }
}

int Loader::ReadLoad(const Load& load) noexcept {
  if (interrupted()) return ECANCELED;
  for (uint64_t at = 0; at < load.nbytes; at += kChunk) {
    const uint64_t nbytes = std::min(kChunk, load.nbytes - at);
    failure_.offset = load.source + at;
    // Before the first inference has ended the arena may be fresh.
    if (!pinned_resident_) Touch(arena_ + load.target + at, nbytes);
    if (const int error = file_.Read(load.source + at, arena_ + load.target + at, nbytes)) return error;
    counts_.bytes += nbytes;
    ++counts_.reads;
    if (interrupted() || computed_.Get() == kAborted) return ECANCELED;
  }
  return 0;
}

}  // namespace flexcomp

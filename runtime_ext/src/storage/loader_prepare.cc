// Preparing weights after their loads.
#include <cstring>

#include "storage/loader.h"

namespace flexcomp {

bool Loader::Shares(const Load& load) const noexcept {
  for (uint32_t i = 0; load.prepared && i < reads_.size(); ++i) {
    const Load& other = reads_[i].of();
    // The end of a load that was begun early is not among these: that comes after this one.
    if (reads_[i].last && other.prepared && other.target < load.target + load.nbytes && load.target < other.target + other.nbytes) return true;
  }
  return false;
}

bool Loader::Prepare(const Read& read, Failure* failure) noexcept {
  const Load& load = read.of();
  if (!load.prepared || (load.kept && read.turn->filling)) return true;
  // As for a read: a thread that gives up loading waits for the end, or preparing does not begin.
  beginning_.Set(1);
  int error = kGivenUp;
  if (!interrupted_) {
    const int64_t begin = MonotonicNs();
    // The prepared form may overwrite the stored form.
    to_the_end_ = IsThereCold(load);
    const uint64_t stored = to_the_end_ ? static_cast<uint64_t>(load.cold) : ReadPlace(load);
    if (stored != load.target) std::memcpy(arena_.At(load.target), arena_.At(stored), load.nbytes);
    const Preparer::Work work = preparer_->WorkOf(read.load);
    preparing_ = read.load;
    preparation_.Offer(work.parts);
    read.turn->loaded.SetUnless(kFailed, read.turn->loaded.Get() | kPreparing);  // sleeping threads wake up and look for work
    error = preparation_.Complete([this](uint32_t part) { return PreparePart(part); });
    const Span span{begin, MonotonicNs()};
    if (read.spans != nullptr) read.spans->prepare = span;
    if (error == 0) read.turn->counts.prepared_bytes += work.nbytes;
    if (to_the_end_ && error == 0) warm_ = read.load + 1;
    lost_ = to_the_end_ && error != 0;
    read.turn->counts.prepare_ns += span.end - span.begin;
  }
  beginning_.Set(0);
  if (error > 0) failure->error = kUnprepared;
  return error == 0;
}

int Loader::PreparePart(uint32_t part) noexcept {
  // A thread that gives up loading need not wait for the parts after this one.
  const bool given_up = interrupted() || (!to_the_end_ && abort_.load(std::memory_order_relaxed));
  return given_up ? kGivenUp : preparer_->Prepare(preparing_, part);
}

bool Loader::HelpPrepare(Turn& turn, uint32_t need) noexcept {
  // The work on offer belongs to one of the first `need` loads if fewer are complete: loads are prepared in order.
  const auto waits = [&] { return turn.loaded.Get() < Count(need); };
  int64_t begin = 0;
  const bool helped = preparation_.Help(
      [&](uint32_t part) {
        begin = MonotonicNs();
        return PreparePart(part);
      },
      waits);
  if (helped) turn.counts.help_ns += MonotonicNs() - begin;
  return helped;
}

}  // namespace flexcomp

// Where bytes come from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

// Reads are begun one after the other and end in the same order; several may be in flight, so that a device need not
// wait for its next request. Used by one thread at a time; does not allocate.
class ByteSource {
 public:
  static constexpr uint32_t kMostInFlight = 8;
  // Where an errno value is returned: the source has changed since opening; it claims to have read more than was asked for.
  static constexpr int kChanged = -1, kOverrun = -4;

  virtual ~ByteSource() = default;

  // Begins to fill [target, target + nbytes) from `offset` on; all three are multiples of kPage. Where the source
  // ends inside the range, the rest of the target holds anything. Never with kMostInFlight reads in flight.
  virtual void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept = 0;
  // Whether End would not have to wait. Only with reads in flight.
  virtual bool Ready() noexcept = 0;
  // Waits for the oldest read in flight. Returns 0, an errno value, or kChanged.
  virtual int End() noexcept = 0;
  // Where reads are copies by the thread that ends a read: copies a part of another thread's read. Any thread may call it;
  // false: there is nothing to do.
  virtual bool Help() noexcept { return false; }

  // One read from beginning to end. Only with none in flight.
  int Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
    Begin(offset, target, nbytes);
    return End();
  }

  // Reads [target, target + nbytes) by the calling thread, whatever is in flight; any thread may call it. Arguments and results
  // are those of Begin and End.
  virtual int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept = 0;

  // Whether the source was written to since opening: 0, kChanged, or the errno value of asking. A 0 after reads says that the
  // reads have the bytes of the opened source. Any thread may call it.
  virtual int Check() const noexcept = 0;
  // Whether reads bypass the page cache.
  virtual bool direct() const noexcept = 0;
  // Whether reads in flight are the device's business alone: no thread of this process touches their targets.
  virtual bool queued() const noexcept = 0;
};

// A queue of a few entries, oldest first.
template <typename T, uint32_t kCapacity = ByteSource::kMostInFlight>
class InFlight {
 public:
  void Push(const T& entry) noexcept { entries_[(first_ + count_++) % kCapacity] = entry; }
  T& Oldest() noexcept { return entries_[first_]; }
  T& Newest() noexcept { return entries_[(first_ + count_ - 1) % kCapacity]; }
  const T& operator[](uint32_t index) const noexcept { return entries_[(first_ + index) % kCapacity]; }
  void Pop() noexcept {
    first_ = (first_ + 1) % kCapacity;
    --count_;
  }
  // Where the oldest lies, and where the one pushed next will; entries do not move.
  uint32_t oldest_slot() const noexcept { return first_; }
  uint32_t next_slot() const noexcept { return (first_ + count_) % kCapacity; }
  uint32_t size() const noexcept { return count_; }
  bool full() const noexcept { return count_ == kCapacity; }

 private:
  T entries_[kCapacity]{};
  uint32_t first_ = 0, count_ = 0;
};

}  // namespace flexcomp

// A copy that threads with nothing better to do take part in.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "base/counter.h"
#include "program/program.h"

namespace flexcomp {

// One thread runs copies, one after the other; others help with whichever is under way.
class SharedCopy {
 public:
  // Copies `nbytes` to `target` in parts, by calls of copy(at, target, nbytes) that return 0 or an errno value, here or in
  // Help; `copy` must be able to run in several threads at a time. The first error is returned when all calls have.
  template <typename Copy>
  int Run(uint64_t offset, std::byte* target, size_t nbytes, const Copy& copy) noexcept {
    const size_t part = std::clamp<size_t>(nbytes / kParts / kPage * kPage, kSmallestPart, kLargestPart);
    const uint32_t parts = static_cast<uint32_t>((nbytes + part - 1) / part);
    // Whoever sees one of these sees the ticket closed, too, and gets no part of it.
    offset_.store(offset, std::memory_order_release);
    target_.store(target, std::memory_order_release);
    nbytes_.store(nbytes, std::memory_order_release);
    part_.store(part, std::memory_order_release);
    done_.store(0, std::memory_order_relaxed);
    error_.store(0, std::memory_order_relaxed);
    const uint64_t ticket = ++number_ << 32;
    ticket_.store(ticket, std::memory_order_release);
    while (Help(copy)) continue;
    // A helper may be in the middle of the last part.
    for (int spin = 0; done_.load(std::memory_order_acquire) != parts; ++spin)
      spin < kSpins ? CpuRelax() : std::this_thread::yield();
    ticket_.store(ticket | kClosed, std::memory_order_release);
    return error_.load(std::memory_order_relaxed);
  }

  // Copies one part of what is under way; false: there is none left. Any thread may call it, with the same `copy`.
  template <typename Copy>
  bool Help(const Copy& copy) noexcept {
    uint64_t ticket = ticket_.load(std::memory_order_acquire), at = 0;
    size_t nbytes = 0, part = 0;
    do {
      nbytes = nbytes_.load(std::memory_order_acquire);
      part = part_.load(std::memory_order_acquire);
      at = (ticket & kClosed) * part;
      if ((ticket & kClosed) == kClosed || at >= nbytes) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
    // The ticket was open all the time: what was read belongs together, and stays until this part is done.
    const int error = copy(offset_.load(std::memory_order_acquire) + at, target_.load(std::memory_order_acquire) + at,
                           std::min<size_t>(part, nbytes - at));
    int none = 0;
    if (error != 0) error_.compare_exchange_strong(none, error, std::memory_order_relaxed);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

 private:
  // Parts of a small copy are as many, those of a large one as large, as two threads need to end at about the same
  // time. Every part is a system call.
  static constexpr size_t kParts = 4, kSmallestPart = 16 << 10, kLargestPart = 64 << 10;
  static constexpr int kSpins = 10000;
  static constexpr uint64_t kClosed = UINT32_MAX;

  uint64_t number_ = 0;  // of copies; belongs to the thread that runs them
  // The number of the copy, and in the lower half how many of its parts are taken, or kClosed.
  alignas(64) std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<uint64_t> offset_{0};
  std::atomic<std::byte*> target_{nullptr};
  std::atomic<size_t> nbytes_{0}, part_{kSmallestPart};
  std::atomic<uint32_t> done_{0};
  std::atomic<int> error_{0};
};

}  // namespace flexcomp

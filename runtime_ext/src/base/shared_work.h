// Work in parts that threads with nothing better to do take part in.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/counter.h"
#include "base/sync.h"

namespace flexcomp {

// One thread offers work and completes it, one piece of work after the other; others help with the offered work.
class SharedWork {
 public:
  // This thread writes the data that do_part needs before: any thread that gets a part sees the data.
  void Offer(uint32_t parts) noexcept {
    parts_ = parts;
    done_.Set(0);
    error_.store(0, std::memory_order_relaxed);
    ticket_.store(++number_ << 32 | parts, std::memory_order_seq_cst);
  }
  // Does the remaining parts: do_part(part), which returns 0 or an error and must be able to run in several threads at
  // a time. An error is returned when all calls have.
  template <typename DoPart>
  int Complete(const DoPart& do_part) noexcept {
    while (Help(do_part)) continue;
    done_.WaitEqual(parts_);  // a helper may be in the middle of the last part
    return error_.load(std::memory_order_relaxed);
  }
  template <typename DoPart>
  int Run(uint32_t parts, const DoPart& do_part) noexcept {
    Offer(parts);
    return Complete(do_part);
  }

  // Does one part of the offered work, with the same `do_part`; false: none is left. Any thread may call this.
  template <typename DoPart>
  bool Help(const DoPart& do_part) noexcept {
    return Help(do_part, [] { return true; });
  }
  // The same, if the caller still wants to: `wanted` is asked after the offer is seen.
  template <typename DoPart, typename Wanted>
  bool Help(const DoPart& do_part, const Wanted& wanted) noexcept {
    uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
    do {
      if (Left(ticket) == 0 || !wanted()) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_seq_cst));
    // The work does not change until this part is done.
    if (const int error = do_part(parts_ - Left(ticket)); error != 0) error_.store(error, std::memory_order_relaxed);
    done_.Add();
    return true;
  }

 private:
  static uint32_t Left(uint64_t ticket) noexcept { return static_cast<uint32_t>(ticket); }

  uint64_t number_ = 0;  // of pieces of work; belongs to the thread that offers them
  uint32_t parts_ = 0;
  alignas(64) Atomic<uint64_t> ticket_{0};  // the number, and in the lower half how many parts nobody has taken
  Atomic<int> error_{0};
  Counter done_;
};

}  // namespace flexcomp

// Work in parts that threads with nothing better to do take part in.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/counter.h"
#include "base/sync.h"

namespace flexcomp {

// One thread offers work and completes it, one piece of work after the other; others help with what is offered.
class SharedWork {
 public:
  // What do_part needs to know is written by this thread before: whoever gets a part sees it.
  void Offer(uint32_t parts) noexcept {
    parts_ = parts;
    done_.Set(0);
    error_.store(0, std::memory_order_relaxed);
    ticket_.store(++number_ << 32 | parts, std::memory_order_seq_cst);
  }
  // Does what is left of the parts: do_part(part), which returns 0 or an error and must be able to run in several threads
  // at a time. An error is returned when all calls have.
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

  // Does one part of what is offered, with the same `do_part`; false: there is none left. Any thread may call it.
  template <typename DoPart>
  bool Help(const DoPart& do_part) noexcept {
    return Help(do_part, [] { return true; });
  }
  // The same, if the caller wants it, which is asked behind the offer.
  template <typename DoPart, typename Wanted>
  bool Help(const DoPart& do_part, const Wanted& wanted) noexcept {
    uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
    do {
      if (Left(ticket) == 0 || !wanted()) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_seq_cst));
    // The work stays what it is until this part is done.
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

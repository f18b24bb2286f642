// A copy that threads with nothing better to do take part in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/shared_work.h"
#include "program/program.h"

namespace flexcomp {

// One thread runs copies, one after the other; others help with whichever is under way.
class SharedCopy {
 public:
  // Copies `nbytes` to `target` in parts, by calls of copy(at, target, nbytes) that return 0 or an errno value, here or in
  // Help; `copy` must be able to run in several threads at a time. An error is returned when all calls have.
  template <typename Copy>
  int Run(uint64_t offset, std::byte* target, size_t nbytes, const Copy& copy) noexcept {
    offset_ = offset;
    target_ = target;
    nbytes_ = nbytes;
    part_ = std::clamp<size_t>(nbytes / kParts / kPage * kPage, kSmallestPart, kLargestPart);
    return work_.Run(static_cast<uint32_t>((nbytes + part_ - 1) / part_), Part(copy));
  }

  // Copies one part of a copy in progress; false: there is none left. Any thread may call it, with the same `copy`.
  template <typename Copy>
  bool Help(const Copy& copy) noexcept {
    return work_.Help(Part(copy));
  }

 private:
  // Parts of a small copy are as many, those of a large one as large, as two threads need to end at about the same
  // time. Every part is a system call.
  static constexpr size_t kParts = 4, kSmallestPart = 16 << 10, kLargestPart = 64 << 10;

  template <typename Copy>
  auto Part(const Copy& copy) const noexcept {
    return [this, &copy](uint32_t part) {
      const size_t at = part * part_;
      return copy(offset_ + at, target_ + at, std::min(part_, nbytes_ - at));
    };
  }

  uint64_t offset_ = 0;
  std::byte* target_ = nullptr;
  size_t nbytes_ = 0, part_ = 0;
  SharedWork work_;
};

}  // namespace flexcomp

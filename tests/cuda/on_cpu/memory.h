// Memory between pages that nobody may touch: reads and writes beyond its ends are faults, and not wrong numbers.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace on_cpu {

// As addresses on a device are: 128-bit loads need 16 bytes, and places in an arena are multiples of 64.
constexpr size_t kAlignment = 64;
// Of it all floats are NaN, and integers -1.
constexpr unsigned char kPoison = 0xff;
// Others: floats are three or zero, integers large with few bits, or zero. A kernel that meets NaN or -1 may leave these out, and be right.
constexpr unsigned char kPoisons[] = {kPoison, 0x40, 0x00};

// `nbytes` bytes, full of poison. The fewer than 64 bytes up to the page that follows are poison, too.
class Guarded {
 public:
  explicit Guarded(size_t nbytes) : nbytes_(nbytes) {
    const size_t page = sysconf(_SC_PAGESIZE), padded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    const size_t pages = (padded + page - 1) / page * page;
    mapped_nbytes_ = pages + 2 * page;
    mapped_ = mmap(nullptr, mapped_nbytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::runtime_error("no memory for a buffer");
    char* begin = static_cast<char*>(mapped_) + page;
    if (mprotect(begin, pages, PROT_READ | PROT_WRITE)) throw std::runtime_error("no memory for a buffer");
    data_ = begin + (pages - padded);
    std::memset(begin, kPoison, pages);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(mapped_, mapped_nbytes_); }

  void* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  void Poison(unsigned char poison = kPoison) { std::memset(data_, poison, nbytes_); }

  // Whether nothing was written to the bytes after the last one.
  bool IsEndIntact() const {
    const unsigned char* end = reinterpret_cast<const unsigned char*>(data_) + nbytes_;
    for (; reinterpret_cast<uintptr_t>(end) % kAlignment; ++end)
      if (*end != kPoison) return false;
    return true;
  }

 private:
  size_t nbytes_, mapped_nbytes_;
  void* mapped_;
  char* data_;
};

}  // namespace on_cpu

// A GPU on the host: streams are threads, each of whose operations comes late at random; memory of the device is out of everybody's
// reach, but while an operation of the device runs.
#pragma once
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace model {

constexpr std::chrono::microseconds kStall{20'000};  // of a stream for which somebody should have waited, and does not
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209, kInvalidHandle = 400,
              kNotFound = 500, kIllegalAddress = 700, kCaptureUnsupported = 900;

struct Settings {
  int architecture = 80, integrated = 0;
  uint64_t granularity = 64 << 10, nbytes = uint64_t{1} << 30;
  unsigned seed = 0;
  int compute_delay_us = 0, copy_delay_us = 0;  // at most, of each operation of the first and the second stream
  int least_delay_us = 0;                       // of a stream that is late
  int64_t fail_at = 0;                          // this call fails, counted from 1
  int fail_with = 999;
  int64_t skip_at = 0;  // this wait, of those of one kind, does nothing
  int skip_kind = 0;
  int version = 12080;     // of CUDA
  int refuses_cubins = 0;  // as one of another kind of the same generation does
};

struct Range {
  uint64_t begin, nbytes;
  bool Holds(uint64_t at, uint64_t count) const { return at >= begin && count <= nbytes && at - begin <= nbytes - count; }
};

// Those of glibc 2.36 may sleep through a notification (its bug 25847), as often as these tests need one.
class Condition {
 public:
  template <typename Holds>
  void wait(std::unique_lock<std::mutex>& lock, const Holds& holds) {
    while (!holds()) {
      const uint32_t seen = epoch_.load();
      lock.unlock();
      epoch_.wait(seen);
      lock.lock();
    }
  }
  // With the lock.
  void notify_all() { ++epoch_, epoch_.notify_all(); }

 private:
  std::atomic<uint32_t> epoch_{0};
};

struct Stream;

struct Event {
  uint64_t recorded = 0, passed = 0;
  Stream* stream = nullptr;  // that recorded it last
};

struct Stream {
  int number;
  std::deque<std::function<void()>> operations;
  bool busy = false, ending = false, capturing = false, stalls = false;
  std::vector<std::function<void()>> captured;
  std::mt19937 random;
  std::thread thread;
};

struct Piece {
  int fd;
  uint64_t nbytes;
};

// All of the device. There is one, which `mutex` guards; operations of streams hold it, too.
struct Device {
  Settings settings;
  std::mutex mutex;
  Condition changed;
  int lost = kSuccess;
  std::string fault;  // the cause of the loss
  std::map<std::string, int64_t> live;
  std::map<std::string, int64_t> called;
  int64_t calls = 0, waits[3] = {};
  const char* failed = "";  // which call was told to
  uint64_t used = 0, peak = 0;
  std::map<unsigned long long, Piece> pieces;           // by handle
  std::map<uint64_t, Range> mapped, registered, reserved, allocated;  // by address
  unsigned long long last_handle = 0;
  int late_writes = 0;

  void Lose(const std::string& why) {
    if (lost == kSuccess) lost = kIllegalAddress, fault = why;
  }
  static bool Within(const std::map<uint64_t, Range>& ranges, uint64_t at, uint64_t nbytes) {
    auto range = ranges.upper_bound(at);
    if (range == ranges.begin()) return false;
    --range;
    // Pieces that follow each other are one.
    for (uint64_t end = at + nbytes; range != ranges.end() && range->first <= at; ++range) {
      const uint64_t behind = range->second.begin + range->second.nbytes;
      if (end <= behind) return true;
      at = behind;
    }
    return false;
  }
  bool OnDevice(uint64_t at, uint64_t nbytes) const { return Within(mapped, at, nbytes); }
  bool Pinned(uint64_t at, uint64_t nbytes) const { return Within(registered, at, nbytes); }
  bool Reserved(uint64_t at) const { return Within(reserved, at, 1); }

  void Protect(int protection) {
    for (const auto& [at, range] : mapped) mprotect(reinterpret_cast<void*>(at), range.nbytes, protection);
  }
  // An operation of the device on memory.
  template <typename Work>
  void Touch(const Work& work) {
    if (lost != kSuccess) return;
    Protect(PROT_READ | PROT_WRITE);
    work();
    Protect(PROT_NONE);
  }

  void Run(Stream& stream) {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stream.ending || !stream.operations.empty(); });
      if (stream.operations.empty()) return;
      const auto operation = std::move(stream.operations.front());
      stream.operations.pop_front();
      stream.busy = true;
      const int least = settings.least_delay_us;
      const int most = stream.number % 2 == 0 ? settings.compute_delay_us : settings.copy_delay_us;
      if (most > 0 || stream.stalls) {
        const auto delay = stream.stalls ? kStall : std::chrono::microseconds(least + stream.random() % (most - least + 1));
        stream.stalls = false;
        lock.unlock();
        std::this_thread::sleep_for(delay);
        lock.lock();
      }
      current = &lock;
      operation();
      stream.busy = false;
      changed.notify_all();
    }
  }
  void Give(Stream& stream, std::function<void()> operation) {
    if (stream.capturing) return stream.captured.push_back(std::move(operation));
    stream.operations.push_back(std::move(operation));
    changed.notify_all();
  }
  void AwaitStream(std::unique_lock<std::mutex>& lock, Stream& stream) {
    changed.wait(lock, [&] { return stream.operations.empty() && !stream.busy; });
  }

  static inline thread_local std::unique_lock<std::mutex>* current = nullptr;  // of the stream whose operation runs here
};

inline Device& device() {
  static Device* one = new Device;  // streams of sessions that nobody closed run on when the process ends
  return *one;
}

}  // namespace model

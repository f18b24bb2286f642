// The threads of a block as fibers, one block after the other. Which thread runs next is drawn at random wherever one waits for
// others, so that a missing barrier gives a wrong result in some order. What threads fetch to shared memory arrives at
// random, too: at once, while others run, or as late as possible.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memory.h"

struct Dim {
  unsigned x = 1, y = 1, z = 1;
  unsigned count() const { return x * y * z; }
};
inline Dim threadIdx, blockIdx, blockDim, gridDim;

namespace on_cpu {

constexpr unsigned kWarp = 32;
constexpr size_t kStackNbytes = 64 << 10;

// A stack, and the place at which its thread goes on. A stack serves one thread of a block after the other: to begin on a new stack takes
// system calls, and to go on elsewhere on another takes none.
class Coroutine {
 public:
  // `body` runs for ever.
  explicit Coroutine(void (*body)()) : stack_(kStackNbytes) {
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.data();
    start_.uc_stack.ss_size = stack_.nbytes();
    makecontext(&start_, body, 0);
  }

  // From outside; returns when the thread leaves.
  [[gnu::noinline]] void Enter(void** outside) {
    if (__builtin_setjmp(outside) != 0) return;
    if (has_begun_) GoOn(inside_);
    has_begun_ = true;
    setcontext(&start_);
  }
  // From inside; returns when somebody enters again.
  [[gnu::noinline]] void Leave(void** outside) {
    if (__builtin_setjmp(inside_) == 0) GoOn(outside);
  }
  [[noreturn, gnu::noinline]] static void GoOn(void** place) { __builtin_longjmp(place, 1); }

 private:
  Guarded stack_;
  ucontext_t start_;
  void* inside_[5];
  bool has_begun_ = false;
};

// A copy to shared memory that is on its way.
struct Copy {
  void* to;
  const void* from;
  size_t nbytes;
  bool is_outside;  // zeros are written, and nothing is read
  int group = 0;    // 0: none yet

  void Arrive() const {
    if (is_outside) std::memset(to, 0, nbytes);
    else std::memcpy(to, from, nbytes);
  }
};

// A thread's part of the operands of a warp's product, of 16 × 8 and 8 × 8 numbers (PTX ISA, "Matrix fragments for mma.m16n8k8").
struct Fragments {
  float left[4], right[2];
};

struct Fiber {
  enum class State {
    kReady,
    kAtBarrier,
    kInWarp,
    kDone
  };
  std::unique_ptr<Coroutine> coroutine;
  Dim index;
  State state = State::kReady;
  int place = 0;           // of the barrier, or below 0 the shuffle, at which the thread waits
  uint64_t exchanged = 0;  // its value for the warp
  Fragments fragments;     // of a product of its warp
  std::vector<Copy> copies;  // that it began, and that have not arrived
  int groups = 0;            // of copies, so far
};

// A launch in the making; there is one at a time.
class Grid {
 public:
  // `skipped` is the barrier that is left out, -1 for none.
  Grid(Dim grid, Dim block, std::function<void()> body, unsigned seed, int skipped)
      : body_(std::move(body)), fibers_(block.count()), skipped_(skipped), random_(seed) {
    gridDim = grid, blockDim = block;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      fibers_[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
  }

  // All blocks, in random order; faults are std::runtime_errors.
  void Run() {
    current_grid = this;
    struct sigaction fault = {}, before_segv, before_bus;
    fault.sa_handler = &OnFault;
    fault.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &fault, &before_segv);
    sigaction(SIGBUS, &fault, &before_bus);
    std::vector<unsigned> blocks(gridDim.count());
    for (unsigned i = 0; i < blocks.size(); ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (unsigned i : blocks) {
      blockIdx = {i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y};
      RunBlock();
      if (!error_.empty()) break;
    }
    sigaction(SIGSEGV, &before_segv, nullptr);
    sigaction(SIGBUS, &before_bus, nullptr);
    current_grid = nullptr;
    if (!error_.empty()) throw std::runtime_error(error_);
  }

  // The block's array number `index`.
  void* Shared(int index, size_t nbytes) {
    std::unique_ptr<Guarded>& array = shared_[index];
    if (!array) {
      array = std::make_unique<Guarded>(nbytes);
      array->Poison(poison_);
    }
    return array->data();
  }

  // The current thread waits for all others of its block at the barrier `place`.
  void Barrier(int place) {
    if (place != skipped_) Wait(Fiber::State::kAtBarrier, place);
  }

  // As `Barrier`, for the threads of its warp.
  void WarpBarrier(int place) {
    if (place != skipped_) Wait(Fiber::State::kInWarp, place);
  }

  // The current thread begins to copy, of its own kind, `nbytes` bytes to shared memory.
  void Fetch(void* to, const void* from, size_t nbytes, bool is_outside) {
    if (reinterpret_cast<uintptr_t>(to) % nbytes || (!is_outside && reinterpret_cast<uintptr_t>(from) % nbytes))
      Fail("a copy to shared memory is not aligned");
    if (!IsShared(to)) Fail("a thread fetches to memory that is not shared");
    fibers_[running_].copies.push_back({to, from, nbytes, is_outside});
    ArriveAtRandom();
  }

  // The current thread's copies since the last group become a group.
  void Commit(int place) {
    if (place == skipped_) return;
    Fiber& fiber = fibers_[running_];
    ++fiber.groups;
    for (Copy& copy : fiber.copies)
      if (copy.group == 0) copy.group = fiber.groups;
  }

  // The current thread waits for all of its groups but the last `left`.
  void WaitForFetches(int place, int left) {
    if (place == skipped_) return;
    const int last = fibers_[running_].groups - left;
    Arrive([&](const Copy& copy) { return copy.group > 0 && copy.group <= last; });
  }

  // The value of thread `lane` of the current one's warp, all of whose threads come to `place`.
  uint64_t Exchange(int place, uint64_t shown, unsigned lane) {
    const unsigned first = running_ / kWarp * kWarp, self = running_;
    fibers_[self].exchanged = shown;
    Wait(Fiber::State::kInWarp, place);
    const uint64_t taken = fibers_[std::min<size_t>(first + lane, fibers_.size() - 1)].exchanged;
    Wait(Fiber::State::kInWarp, place);
    return taken;
  }

  // Adds a product of the current thread's warp to its four sums, two neighbours and two `apart` floats later: the last 13 bits of operands
  // do not count, and sums are float32, product by product.
  void Multiply(int place, const Fragments& shown, float* sums, int apart) {
    const unsigned first = running_ / kWarp * kWarp, self = lane();
    if (first + kWarp > fibers_.size()) Fail("a product is of whole warps");
    fibers_[running_].fragments = shown;
    Wait(Fiber::State::kInWarp, place);
    for (int i = 0; i < 4; ++i) {
      const unsigned row = self / 4 + i / 2 * 8, column = self % 4 * 2 + i % 2;
      for (unsigned k = 0; k < 8; ++k) {
        const Fragments& left = fibers_[first + row % 8 * 4 + k % 4].fragments;
        const Fragments& right = fibers_[first + column * 4 + k % 4].fragments;
        sums[i % 2 + i / 2 * apart] += Tf32(left.left[row / 8 + k / 4 * 2]) * Tf32(right.right[k / 4]);
      }
    }
    Wait(Fiber::State::kInWarp, place);
  }

  // Ends the launch, from within a thread.
  [[noreturn]] void Fail(const char* error) {
    error_ = error;
    Coroutine::GoOn(scheduler_);
  }

  unsigned lane() const { return running_ % kWarp; }

  static inline Grid* current_grid = nullptr;
  static inline std::vector<std::unique_ptr<Coroutine>> coroutines;  // of threads that have ended

 private:
  static float Tf32(float number) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(number) & ~uint32_t{0x1fff});
  }

  static void OnFault(int) {
    current_grid->Fail("a thread reads or writes outside of its buffers");
  }

  static void Work() {
    for (;;) {
      current_grid->body_();
      current_grid->Arrive([](const Copy&) { return true; });
      current_grid->Leave(Fiber::State::kDone);
    }
  }

  void Leave(Fiber::State state) {
    Fiber& fiber = fibers_[running_];
    fiber.state = state;
    fiber.coroutine->Leave(scheduler_);
  }

  bool IsShared(const void* place) const {
    return std::any_of(shared_.begin(), shared_.end(), [&](const auto& array) {
      const char* begin = static_cast<const char*>(array.second->data());
      return place >= begin && place < begin + array.second->nbytes();
    });
  }

  // Those of the current thread's copies arrive for which this holds.
  template <typename Chosen>
  void Arrive(Chosen chosen) {
    std::vector<Copy>& copies = fibers_[running_].copies;
    const auto arrived = std::stable_partition(copies.begin(), copies.end(), [&](const Copy& copy) { return !chosen(copy); });
    std::for_each(arrived, copies.end(), [](const Copy& copy) { copy.Arrive(); });
    copies.erase(arrived, copies.end());
  }

  // In a third of the blocks copies arrive at once, in a third as late as possible, in the others some of them here.
  void ArriveAtRandom() {
    if (pace_ == 0) return;
    Arrive([&](const Copy&) { return pace_ == 1 || random_() % 4 == 0; });
  }

  void Wait(Fiber::State state, int place) {
    ArriveAtRandom();
    fibers_[running_].place = place;
    Leave(state);
  }

  void RunBlock() {
    // Where a barrier is missing, a number that is read too early is not always one that a kernel leaves out.
    poison_ = skipped_ >= 0 ? kPoisons[random_() % std::size(kPoisons)] : kPoison;
    for (auto& [_, array] : shared_) array->Poison(poison_);
    ready_.clear();
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      fibers_[i].state = Fiber::State::kReady;
      fibers_[i].copies.clear();
      fibers_[i].groups = 0;
      ready_.push_back(i);
    }
    std::shuffle(ready_.begin(), ready_.end(), random_);
    pace_ = random_() % 3;
    // In half of the blocks a warp that need not wait goes on at once, and gets as far ahead of the others as barriers let it.
    const bool runs_ahead = random_() % 2;
    while (!ready_.empty()) {
      if (!runs_ahead) std::swap(ready_[random_() % ready_.size()], ready_.back());
      running_ = ready_.back();
      ready_.pop_back();
      Fiber& fiber = fibers_[running_];
      if (!fiber.coroutine) Prepare(&fiber);
      threadIdx = fiber.index;
      fiber.coroutine->Enter(scheduler_);
      if (!error_.empty()) return;
      if (fiber.state == Fiber::State::kDone) coroutines.push_back(std::move(fiber.coroutine));
      if (fiber.state == Fiber::State::kInWarp) {
        const unsigned first = running_ / kWarp * kWarp;
        Release(Fiber::State::kInWarp, first, std::min<unsigned>(first + kWarp, fibers_.size()));
      }
      if (ready_.empty()) Release(Fiber::State::kAtBarrier, 0, fibers_.size());
    }
    for (const Fiber& fiber : fibers_)
      if (fiber.state != Fiber::State::kDone) error_ = "threads wait for others that have ended or wait elsewhere";
  }

  void Prepare(Fiber* fiber) {
    if (coroutines.empty()) coroutines.push_back(std::make_unique<Coroutine>(&Work));
    fiber->coroutine = std::move(coroutines.back());
    coroutines.pop_back();
  }

  // Threads [first, last) go on, if all of them are in this state at one place.
  void Release(Fiber::State state, unsigned first, unsigned last) {
    for (unsigned i = first; i < last; ++i)
      if (fibers_[i].state != state || fibers_[i].place != fibers_[first].place) return;
    for (unsigned i = first; i < last; ++i) {
      fibers_[i].state = Fiber::State::kReady;
      ready_.push_back(i);
    }
    std::shuffle(ready_.end() - (last - first), ready_.end(), random_);
  }

  std::function<void()> body_;
  std::vector<Fiber> fibers_;
  int skipped_;
  std::mt19937 random_;
  std::vector<unsigned> ready_;  // threads that need not wait
  std::map<int, std::unique_ptr<Guarded>> shared_;
  void* scheduler_[5];  // where it goes on
  unsigned running_ = 0;
  unsigned char poison_ = kPoison;  // of shared arrays
  unsigned pace_ = 0;               // of copies
  std::string error_;
};

}  // namespace on_cpu

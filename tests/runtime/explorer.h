// Runs threads of one program one step at a time, in every order there is.
//
// Threads are fibers here. A fiber stops before each of its steps, which are the operations on Atomic, so that between two
// stops it does one of them and what it does alone. All memory that fibers share and their stacks are one state: from each
// state every fiber that may go is tried, from a copy of the state, and a state that was there before is left at once.
// An operation that changes nothing is no step where no other fiber that goes on changes that Atomic: it finds the same whenever it
// is done. Such Atomics are assumed until a fiber is seen to change one that another took for its own; then all begins anew.
// Nor is it a step to wake nobody: whoever falls asleep later could as well have seen what changed since, and not slept.
// What is found: a failed Require, and states from which nobody can go on. Operations take effect in one order for all;
// what weaker memory orders allow besides is not explored.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace explore {

inline constexpr size_t kStackNbytes = 128 << 10, kSharedNbytes = 64 << 10;
inline constexpr size_t kRemains = 1 << 10;
inline constexpr int kMostFibers = 4;

struct Fiber {
  const char* name;
  char* live;  // of its stack: what lies behind
  bool done;
  const void* asleep_on;           // until somebody notifies
  bool (*may_go)(const void*);     // or until this says so, if there is one
  const void* asked;
  int options, option;             // in how many ways it may go on, and which was taken
  bool alone;                      // its step is nobody else's
  const char* doing;
  const void* with;
  jmp_buf context;  // last: signals, in its end, are no part of the state
};
inline constexpr size_t kFiberNbytes = offsetof(Fiber, context) + offsetof(__jmp_buf_tag, __mask_was_saved);

// The state, but for the stacks.
inline Fiber fibers[kMostFibers];
inline int fiber_count = 0;
alignas(64) inline char shared[kSharedNbytes];
inline size_t shared_nbytes = 0;
alignas(64) inline char stacks[kMostFibers][kStackNbytes];

inline int broken = 0;  // the number of the rule that a test has broken

inline jmp_buf scheduler;
inline int current = -1;

inline void* Allocate(size_t nbytes) {
  nbytes = (nbytes + 63) / 64 * 64;
  if (shared_nbytes + nbytes > kSharedNbytes) std::abort();
  return shared + std::exchange(shared_nbytes, shared_nbytes + nbytes);
}

// Not of the state: the fibers, as bits, that were seen to change an Atomic, and for each fiber those that took it for unchanged by
// that one, which had not ended.
struct Users {
  uint8_t changers, owners[kMostFibers];
};
inline Users users[kSharedNbytes / alignof(uint32_t)];
inline void Disown() {
  for (Users& of : users) std::memset(of.owners, 0, sizeof(of.owners));
}
inline bool shared_after_all = false;

inline Users& UsersOf(const void* atomic) {
  return users[static_cast<size_t>(static_cast<const char*>(atomic) - shared) / alignof(uint32_t)];
}
// Whether nobody but the fiber that runs will change it.
inline bool IsOwn(const void* atomic) {
  if (current < 0) return true;
  Users& of = UsersOf(atomic);
  for (int i = 0; i < kMostFibers; ++i)
    if ((of.changers >> i & 1) != 0 && i != current && !(i < fiber_count && fibers[i].done)) return false;
  for (int i = 0; i < kMostFibers; ++i)
    if (!(i < fiber_count && fibers[i].done)) of.owners[i] |= 1 << current;
  return true;
}
inline void Change(const void* atomic) {
  if (current < 0) return;
  Users& of = UsersOf(atomic);
  of.changers |= 1 << current;
  shared_after_all |= (of.owners[current] & ~(1 << current)) != 0;
}

struct Taken {
  const char *name, *doing;
  const void* with;
  int option;
};
inline std::vector<Taken> path;  // to the state that is looked at

[[noreturn]] inline void Fail(const char* what) {
  std::printf("%s, after %zu steps:\n", what, path.size());
  for (size_t i = path.size() > 400 ? path.size() - 400 : 0; i < path.size(); ++i) {
    const Taken& taken = path[i];
    std::printf("  %-8s %s", taken.name, taken.doing);
    if (taken.with != nullptr) std::printf(" +%td", static_cast<const char*>(taken.with) - shared);
    if (taken.option != 0) std::printf(" (%d)", taken.option);
    std::printf("\n");
  }
  std::fflush(stdout);
  std::_Exit(1);
}

inline void Require(bool holds, const char* what) {
  if (!holds) Fail(what);
}

[[gnu::noinline]] inline void Yield() {
  Fiber& fiber = fibers[current];
#if defined(__x86_64__)
  asm volatile("mov %%rsp, %0" : "=r"(fiber.live));
#elif defined(__aarch64__)
  asm volatile("mov %0, sp" : "=r"(fiber.live));
#else
#error "which register holds the stack's end?"
#endif
  if (_setjmp(fiber.context) == 0) _longjmp(scheduler, 1);
}

// Before a step. Returns the way to take, of so many.
inline int At(const char* doing, const void* with = nullptr, int options = 1) {
  if (current < 0) return 0;  // nothing is explored yet
  fibers[current].doing = doing;
  fibers[current].with = with;
  fibers[current].options = options;
  Yield();
  return std::exchange(fibers[current].option, 0);
}

// The way to take, of so many, where that is up to nothing that others do and what follows, to the next step, is done alone: the
// step could as well come before those of others, and no other fiber is tried first.
inline int Choose(const char* doing, int options) {
  fibers[current].alone = current >= 0;
  const int option = At(doing, nullptr, options);
  fibers[current].alone = false;
  return option;
}

// Stops until the condition holds, which looks at the state only. Returns the way to take, of so many.
template <typename Condition>
int Until(const char* doing, const Condition& condition, int options = 1) {
  Fiber& fiber = fibers[current];
  fiber.may_go = [](const void* asked) { return (*static_cast<const Condition*>(asked))(); };
  fiber.asked = &condition;
  const int option = At(doing, nullptr, options);
  fiber.may_go = nullptr;
  fiber.asked = nullptr;
  return option;
}

inline void Sleep(const void* on) {
  fibers[current].asleep_on = on;
  At("wake up", on);
}
inline bool IsSleptOn(const void* on) {
  for (const Fiber& fiber : fibers)
    if (fiber.asleep_on == on) return true;
  return false;
}
inline void Wake(const void* on) {
  for (Fiber& fiber : fibers)
    if (fiber.asleep_on == on) fiber.asleep_on = nullptr;
}

inline void (*body)(void*);
inline void* argument;
inline void Enter() {
  body(argument);
  fibers[current].done = true;
  fibers[current].live = stacks[current] + kStackNbytes;
  _longjmp(scheduler, 1);
}

// Makes a fiber of `run`, which stays where it is; it runs to its first step. Returns its number.
template <typename Run>
int Start(const char* name, Run& run) {
  if (fiber_count == kMostFibers) std::abort();
  const int number = fiber_count++, before = std::exchange(current, number);
  fibers[number] = {};
  fibers[number].name = name;
  body = [](void* what) { (*static_cast<Run*>(what))(); };
  argument = &run;
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks[number];
  context.uc_stack.ss_size = kStackNbytes;
  makecontext(&context, Enter, 0);
  if (_setjmp(scheduler) == 0) setcontext(&context);
  current = before;
  return number;
}

[[gnu::noinline]] inline void Resume(int number, int option) {
  current = number;
  fibers[number].option = option;
  // Below lie remains of calls, which calls to come would take into their frames.
  std::memset(fibers[number].live - kRemains, 0, kRemains);
  if (_setjmp(scheduler) == 0) _longjmp(fibers[number].context, 1);
  current = -1;
}

inline bool MayGo(const Fiber& fiber) {
  return !fiber.done && fiber.asleep_on == nullptr && (fiber.may_go == nullptr || fiber.may_go(fiber.asked));
}

inline size_t StackNbytes(int number) { return static_cast<size_t>(stacks[number] + kStackNbytes - fibers[number].live); }

// Calls visit(data, nbytes) for every part of the state, visit_stack(number, data, nbytes) for the stacks.
template <typename Visit, typename VisitStack>
void Parts(const Visit& visit, const VisitStack& visit_stack) {
  for (int i = 0; i < fiber_count; ++i) visit(reinterpret_cast<char*>(&fibers[i]), kFiberNbytes);
  visit(shared, shared_nbytes);
  for (int i = 0; i < fiber_count; ++i) visit_stack(i, fibers[i].live, StackNbytes(i));
}

// The scheduler's own: fast, while fibers' code is compiled to be small (_SMALL in test_protocol.py).
#pragma GCC push_options
#pragma GCC optimize("O2")

// Sums of products, none of which waits for another. `part` tells parts of the same bytes apart.
inline uint64_t Sum(uint64_t part, const char* data, size_t nbytes) {
  uint64_t sum = 0, key = 0x9E3779B97F4A7C15 * (part + 1);
  const auto add = [&](uint64_t one, uint64_t two) {
    const auto product = static_cast<unsigned __int128>(one ^ key) * (two ^ ~key);
    sum += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    key += 0xD6E8FEB86659FD93;
  };
  uint64_t one, two;
  size_t at = 0;
  for (; at + 16 <= nbytes; at += 16) {
    std::memcpy(&one, data + at, 8);
    std::memcpy(&two, data + at + 8, 8);
    add(one, two);
  }
  if (at < nbytes) std::memcpy(&one, data + at, 8), add(one, nbytes);
  return sum;
}

// Of the stacks; each changes only while its own fiber runs.
struct Sums {
  uint64_t stacks[kMostFibers] = {};
  void Update(int number) { stacks[number] = Sum(2 * kMostFibers + number, fibers[number].live, StackNbytes(number)); }
};

inline uint64_t Hash(const Sums& sums) {
  uint64_t hash = 0, part = 0;
  Parts([&](const char* data, size_t nbytes) { hash += Sum(part++, data, nbytes); },
        [&](int number, const char*, size_t) { hash += sums.stacks[number]; });
  hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15;
  return (hash ^ hash >> 29) | 1;
}

class Seen {
 public:
  // That `Add` comes soon: the slot is far away.
  void Expect(uint64_t hash) const { __builtin_prefetch(&slots_[(hash >> 20) & (slots_.size() - 1)]); }
  // Whether it is new.
  bool Add(uint64_t hash) {
    if (2 * count_ >= slots_.size()) Grow();
    if (!Put(hash)) return false;
    ++count_;
    return true;
  }
  size_t count() const { return count_; }

 private:
  bool Put(uint64_t hash) {
    for (size_t at = hash >> 20;; ++at) {
      uint64_t& slot = slots_[at & (slots_.size() - 1)];
      if (slot == hash) return false;
      if (slot == 0) return slot = hash, true;
    }
  }
  void Grow() {
    const std::vector<uint64_t> old = std::exchange(slots_, std::vector<uint64_t>(2 * slots_.size()));
    for (const uint64_t hash : old)
      if (hash != 0) Put(hash);
  }
  std::vector<uint64_t> slots_ = std::vector<uint64_t>(1 << 16);
  size_t count_ = 0;
};

struct Explored {
  size_t states = 0, steps = 0;
};

// Everything that the fibers, as they are now, may do. `at_end` looks at the states in which all of them are done.
template <typename AtEnd>
Explored Explore(const AtEnd& at_end) {
  struct Frame {
    size_t saved;  // where its state lies
    int fiber, end, option;  // the fibers before `end` are tried
    int came_by;  // the fiber whose step led there
    Sums sums;
  };
  std::vector<Frame> frames;
  std::vector<char> saved;
  Seen seen;
  Explored explored;
  Sums sums;
  unsigned differ = 0;  // fibers, as bits, whose stacks are not those of the last frame
  const auto save = [&](const char* data, size_t nbytes) { saved.insert(saved.end(), data, data + nbytes); };
  const auto save_stack = [&](int, const char* data, size_t nbytes) { save(data, nbytes); };
  // The state that lies saved from `at` on.
  const auto push = [&](size_t at, int came_by) {
    int first = 0, end = fiber_count;
    bool done = true, stuck = true;
    for (int i = 0; i < fiber_count; ++i) {
      if (fibers[i].alone) first = i, end = i + 1;
      done &= fibers[i].done;
      stuck &= !MayGo(fibers[i]);
    }
    frames.push_back({at, first, end, 0, came_by, sums});
    differ = 0;
    if (done) at_end();
    Require(done || !stuck, "nobody can go on");
  };
  path.clear();
  for (int i = 0; i < fiber_count; ++i) sums.Update(i);
  seen.Add(Hash(sums));
  Parts(save, save_stack);
  push(0, 0);
  for (bool there = true; !frames.empty();) {  // there: the state is that of the last frame
    Frame& frame = frames.back();
    if (!there) {
      // First the fibers, which say where the stacks are.
      const char* from = saved.data() + frame.saved;
      Parts(
          [&](char* data, size_t nbytes) {
            std::memcpy(data, from, nbytes);
            from += nbytes;
          },
          [&](int number, char* data, size_t nbytes) {
            if ((differ >> number & 1) != 0) std::memcpy(data, from, nbytes);
            from += nbytes;
          });
      sums = frame.sums;
      differ = 0;
      there = true;
    }
    while (frame.fiber < frame.end && !(MayGo(fibers[frame.fiber]) && frame.option < fibers[frame.fiber].options)) {
      ++frame.fiber;
      frame.option = 0;
    }
    if (frame.fiber == frame.end) {
      saved.resize(frame.saved);
      differ |= 1u << frame.came_by;
      frames.pop_back();
      if (!path.empty()) path.pop_back();
      there = false;
      continue;
    }
    const int number = frame.fiber;
    const Fiber& fiber = fibers[number];
    path.push_back({fiber.name, fiber.doing, fiber.with, frame.option});
    Resume(number, frame.option++);
    ++explored.steps;
    if (shared_after_all) break;
    differ |= 1u << number;
    sums.Update(number);
    const uint64_t hash = Hash(sums);
    if (explored.steps % 4096 == 0) {
      Sums all = sums;
      for (int i = 0; i < fiber_count; ++i) all.Update(i);
      Require(Hash(all) == hash, "a fiber changed the stack of another");
    }
    seen.Expect(hash);
    const size_t at = saved.size();
    Parts(save, save_stack);  // meanwhile
    if (seen.Add(hash)) {
      push(at, number);
    } else {
      saved.resize(at);
      path.pop_back();
      there = false;
    }
  }
  explored.states = seen.count();
  return explored;
}

#pragma GCC pop_options

}  // namespace explore

namespace flexcomp {

inline constexpr int kSpins = 0;

template <typename T>
class Atomic {
 public:
  Atomic(T value = {}) noexcept : value_(value) {}
  T load(std::memory_order = std::memory_order_seq_cst) const noexcept {
    if (!IsOwn()) At("load");
    return value_;
  }
  void store(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    if (value != value_ || !IsOwn()) At("store"), Become(value);
  }
  operator T() const noexcept { return load(); }
  T operator=(T value) noexcept { return store(value), value; }
  T fetch_add(T value, std::memory_order = std::memory_order_seq_cst) noexcept { return At("add"), Become(value_ + value); }
  T fetch_sub(T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    return At("subtract"), Become(value_ - value);
  }
  bool compare_exchange_weak(T& seen, T value, std::memory_order = std::memory_order_seq_cst) noexcept {
    At("compare and store");
    if (value_ != seen) return seen = value_, false;
    return Become(value), true;
  }
  void wait(T old, std::memory_order = std::memory_order_seq_cst) const noexcept {
    for (At("wait"); value_ == old;) explore::Sleep(this);
  }
  void notify_all() noexcept {
    if (explore::IsSleptOn(this)) At("notify"), explore::Wake(this);
  }

 private:
  // Counts of spins and the numbers of errors order nothing.
  static constexpr bool kQuiet = std::is_same_v<T, int>;
  void At(const char* doing) const noexcept {
    if constexpr (!kQuiet) explore::At(doing, this);
  }
  bool IsOwn() const noexcept {
    if constexpr (kQuiet) return true;
    return explore::IsOwn(this);
  }
  T Become(T value) noexcept {
    if constexpr (!kQuiet)
      if (value != value_) explore::Change(this);
    return std::exchange(value_, value);
  }

  T value_;
};

class Thread {
 public:
  template <typename Run>
  explicit Thread(Run run) : number_(explore::Start("loader", *new(explore::Allocate(sizeof(Run))) Run(std::move(run)))) {}
  Thread(Thread&& other) noexcept = default;
  void join() {
    explore::Until("join", [this] { return explore::fibers[number_].done; });
  }

 private:
  int number_;
};

}  // namespace flexcomp

// The threading primitives. A program that explores how the steps of threads may follow each other
// (tests/runtime/explorer.h) puts its own in the place of the standard library's.
#pragma once

#ifdef FLEXCOMP_SYNC
#include FLEXCOMP_SYNC
#else

#include <atomic>
#include <thread>

namespace flexcomp {

template <typename T>
using Atomic = std::atomic<T>;
using Thread = std::thread;

inline constexpr int kSpins = 1000;  // looks before a thread sleeps

}  // namespace flexcomp

#endif

// The clock of a pool.
#pragma once

#include <chrono>

namespace flexcomp {

inline double Now() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace flexcomp

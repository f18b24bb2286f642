// Scratch that kernels request at run time, unknown to the planner: register tiles of a few KiB.
//
// Each compute thread serves the requests from one small block of fixed size, as a stack. Anything larger should have
// been an argument placed by the planner, and fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace flexcomp {

inline constexpr size_t kWorkspaceBytes = 64 << 10;

class Workspace {
 public:
  Workspace();  // throws std::bad_alloc

  void* Push(uint64_t nbytes) noexcept;  // nullptr: there is no room
  bool Pop(void* block) noexcept;        // false: the block is not the last one
  // Takes back blocks that kernels left: a kernel that fails halfway frees nothing. Only where no kernel of this thread
  // runs.
  void Reset() noexcept { top_ = 0; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> base_;
  uint64_t top_ = 0;
};

}  // namespace flexcomp

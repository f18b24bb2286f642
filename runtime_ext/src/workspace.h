// Scratch that kernels ask for behind the planner's back: register tiles of a few KiB.
//
// Each thread serves them from one small block of fixed size, as a stack. Anything larger should have been
// an argument placed by the planner, and fails.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

inline constexpr size_t kWorkspaceBytes = 64 << 10;

// Functions with the signatures of TVMBackendAllocWorkspace and TVMBackendFreeWorkspace.
void* AllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code, int dtype_bits);
int FreeWorkspace(int device_type, int device_id, void* block);

// Takes back what the calling thread's kernels left: one that fails in between frees nothing. To be called
// where no kernel of this thread is running.
void ResetWorkspace() noexcept;

}  // namespace flexcomp

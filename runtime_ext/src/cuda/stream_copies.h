// Copies into a device's arena, out of the arena and within, in the order of the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device.h"

namespace flexcomp::cuda {

// See SessionMemory, whose functions these are.
class StreamCopies {
 public:
  explicit StreamCopies(Device& device) : device_(device) {}

  void Write(std::byte* place, const void* from, uint64_t nbytes) { CopyNow(place, from, nbytes); }
  void Read(void* to, const std::byte* place, uint64_t nbytes) { CopyNow(to, place, nbytes); }
  void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept;
  void Clear(std::byte* place, uint64_t nbytes) noexcept;
  const std::byte* Look(const std::byte* place, uint64_t nbytes);

 private:
  void CopyNow(void* to, const void* from, uint64_t nbytes);
  // For calls that must succeed: otherwise the arena is unknown, and nothing may use it.
  template <typename Function>
  void Insist(const char* call, const Function& function) noexcept;

  Device& device_;
  std::vector<std::byte> looked_at_;
};

}  // namespace flexcomp::cuda

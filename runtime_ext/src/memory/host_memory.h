// An arena that kernels and this process see at the same addresses.
#pragma once

#include <cstring>
#include <string>

#include "memory/session_memory.h"

namespace flexcomp {

class HostMemory : public SessionMemory {
 public:
  // Throws BudgetError.
  explicit HostMemory(uint64_t nbytes) : arena_(nbytes) {}

  std::byte* base() const noexcept override { return arena_.base(); }
  uint64_t nbytes() const noexcept override { return arena_.nbytes(); }
  uint64_t Resident() const override { return arena_.Resident(); }
  FreshPages fresh(uint64_t at, uint64_t nbytes) const noexcept override { return {arena_.base() + at, nbytes}; }

  bool Reserve(uint64_t nbytes) override;
  bool Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept override;
  [[noreturn]] void RaiseRefusal(uint64_t nbytes) const override;
  bool Discard(std::span<const Carried> kept) noexcept override { return arena_.Discard(kept); }
  bool Attach() override { return false; }

  void Write(std::byte* place, const void* from, uint64_t nbytes) override { std::memcpy(place, from, nbytes); }
  void Read(void* to, const std::byte* place, uint64_t nbytes) override { std::memcpy(to, place, nbytes); }
  void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept override { std::memcpy(to, from, nbytes); }
  void Clear(std::byte* place, uint64_t nbytes) noexcept override { arena_.Clear(place, nbytes); }
  const std::byte* Look(const std::byte* place, uint64_t) override { return place; }

 private:
  Arena arena_;
  Arena next_;  // mapped in advance for a larger size that is wanted, and untouched
};

}  // namespace flexcomp

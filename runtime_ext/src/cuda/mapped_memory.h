// An arena in memory of this process that an integrated GPU uses, too.
#pragma once

#include "cuda/device.h"
#include "cuda/stream_copies.h"
#include "memory/host_memory.h"

namespace flexcomp::cuda {

class MappedMemory final : public HostMemory {
 public:
  // Throws BudgetError.
  MappedMemory(Device& device, uint64_t nbytes) : HostMemory(nbytes), device_(device), copies_(device) {}
  ~MappedMemory() override { Detach(); }

  std::byte* base() const noexcept override { return seen_; }
  FreshPages fresh(uint64_t, uint64_t) const noexcept override { return {}; }
  bool Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept override;
  bool Discard(std::span<const Carried>) noexcept override { return false; }  // pinned pages do not go
  bool Attach() override;
  bool visible() const noexcept override { return false; }
  void AwaitCaller() override { device_.FinishDefault(); }

  void Write(std::byte* place, const void* from, uint64_t nbytes) override { copies_.Write(place, from, nbytes); }
  void Read(void* to, const std::byte* place, uint64_t nbytes) override { copies_.Read(to, place, nbytes); }
  void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept override { copies_.Copy(to, from, nbytes); }
  void Clear(std::byte* place, uint64_t nbytes) noexcept override { copies_.Clear(place, nbytes); }
  const std::byte* Look(const std::byte* place, uint64_t) override;

  // The address in this process of the memory that kernels see at `place`.
  std::byte* HostOf(const std::byte* place) const noexcept { return HostMemory::base() + (place - seen_); }

 private:
  void Detach() noexcept;

  Device& device_;
  StreamCopies copies_;
  std::byte* seen_ = nullptr;  // by the device; nullptr: not attached
};

}  // namespace flexcomp::cuda

// How weights come to a GPU: through pinned memory and a copy, or by the read itself where both share their memory.
#pragma once

#include "cuda/mapped_memory.h"
#include "cuda/pinned_ring.h"
#include "cuda/stream_order.h"
#include "storage/delivery.h"

namespace flexcomp::cuda {

// Whether nothing was refused; a refusal stays to be told, whatever succeeds later.
inline bool Noted(const Refusal& refusal, Refusal& noted) noexcept {
  if (refusal) noted = refusal;
  return !refusal;
}

// To memory of its own. Nobody waits for steps here but the copies.
class CopiedDelivery final : public Delivery {
 public:
  CopiedDelivery(Device& device, StreamOrder& order) : device_(device), order_(order), ring_(device) {}

  bool Free(uint32_t) noexcept override { return true; }
  std::byte* Begin(std::byte* place, uint64_t nbytes) noexcept override { return ring_.Begin(place, nbytes, &refusal_); }
  bool End(uint32_t steps) noexcept override;
  void Drop() noexcept override { ring_.Drop(); }
  bool Complete(uint32_t load) noexcept override { return Noted(order_.AfterLoad(load), refusal_); }
  void Settle() noexcept override { device_.Settle(); }
  [[noreturn]] void Throw() const override { device_.Raise(refusal_); }

 private:
  Device& device_;
  StreamOrder& order_;
  PinnedRing ring_;
  Refusal refusal_;
};

// To memory that both use: a read may begin when the steps that used its place are over, and then the weights are there.
class SharedDelivery final : public Delivery {
 public:
  SharedDelivery(Device& device, StreamOrder& order, const MappedMemory*& memory) : device_(device), order_(order), memory_(memory) {}

  bool Free(uint32_t steps) noexcept override { return Noted(order_.AwaitSteps(steps), refusal_); }
  std::byte* Begin(std::byte* place, uint64_t) noexcept override { return memory_->HostOf(place); }
  bool End(uint32_t) noexcept override { return true; }
  void Drop() noexcept override {}
  bool Complete(uint32_t) noexcept override { return true; }
  void Settle() noexcept override { device_.Settle(); }
  [[noreturn]] void Throw() const override { device_.Raise(refusal_); }

 private:
  Device& device_;
  StreamOrder& order_;
  const MappedMemory*& memory_;  // of the session, once there is one
  Refusal refusal_;
};

}  // namespace flexcomp::cuda

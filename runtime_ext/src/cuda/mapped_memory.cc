#include "cuda/mapped_memory.h"

#include "base/error.h"

namespace flexcomp::cuda {

bool MappedMemory::Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept {
  Detach();  // pinned pages would neither move nor go
  return HostMemory::Resize(nbytes, moves, sparse);
}

bool MappedMemory::Attach() {
  if (seen_ != nullptr) return false;
  std::byte* const host = HostMemory::base();
  if (const Refusal refusal = device_.Try("cuMemHostRegister", [&](const Driver& driver) {
        return driver.HostRegister(host, HostMemory::nbytes(), kDeviceMap);
      }))
    device_.Raise(refusal, refusal.result == kOutOfMemory ? "BudgetError" : "ExecutionError");
  DevicePointer seen = 0;
  const Refusal refusal =
      device_.Try("cuMemHostGetDevicePointer", [&](const Driver& driver) { return driver.HostGetDevicePointer(&seen, host, 0); });
  seen_ = refusal ? host : reinterpret_cast<std::byte*>(seen);
  if (refusal) {
    Detach();
    device_.Raise(refusal);
  }
  return true;
}

void MappedMemory::Detach() noexcept {
  if (seen_ == nullptr) return;
  device_.Insist("cuMemHostUnregister", [&](const Driver& driver) { return driver.HostUnregister(HostMemory::base()); });
  seen_ = nullptr;
}

const std::byte* MappedMemory::Look(const std::byte* place, uint64_t) {
  device_.Finish(device_.compute());
  return HostOf(place);
}

}  // namespace flexcomp::cuda

#include "cuda/device_memory.h"

#include "base/error.h"

namespace flexcomp::cuda {
namespace {

constexpr int kMinimumGranularity = 0;

AllocationProperties OnDevice(const Device& device) {
  AllocationProperties properties;
  properties.location.id = device.ordinal();
  return properties;
}

}  // namespace

DeviceMemory::DeviceMemory(Device& device, uint64_t nbytes, uint64_t most) : device_(device), copies_(device) {
  const AllocationProperties properties = OnDevice(device_);
  device_.Do("cuMemGetAllocationGranularity", [&](const Driver& driver) {
    return driver.GetAllocationGranularity(&piece_nbytes_, &properties, kMinimumGranularity);
  });
  reserved_ = (Pieces(most) > 0 ? Pieces(most) : 1) * piece_nbytes_;
  pieces_.reserve(reserved_ / piece_nbytes_);  // no switch asks for memory
  device_.Do("cuMemAddressReserve",
             [&](const Driver& driver) { return driver.AddressReserve(&base_, reserved_, 0, 0, 0); });
  if (const Refusal refusal = Extend(Pieces(nbytes))) {
    Cut(0);
    device_.Insist("cuMemAddressFree", [&](const Driver& driver) { return driver.AddressFree(base_, reserved_); });
    RaiseRefusal(nbytes);
  }
  nbytes_ = nbytes;
  Clear(base(), Resident());
}

DeviceMemory::~DeviceMemory() {
  device_.Settle();
  Cut(0);
  if (pieces_.empty())
    device_.Insist("cuMemAddressFree", [&](const Driver& driver) { return driver.AddressFree(base_, reserved_); });
}

Refusal DeviceMemory::AddPiece() noexcept {
  const AllocationProperties properties = OnDevice(device_);
  AccessDescription access;
  access.location = properties.location;
  const DevicePointer place = base_ + pieces_.size() * piece_nbytes_;
  AllocationHandle handle;
  Refusal refusal =
      device_.Try("cuMemCreate", [&](const Driver& driver) { return driver.MemoryCreate(&handle, piece_nbytes_, &properties, 0); });
  if (refusal) return refusal;
  refusal = device_.Try("cuMemMap", [&](const Driver& driver) { return driver.MemoryMap(place, piece_nbytes_, 0, handle, 0); });
  if (!refusal) {
    pieces_.push_back(handle);
    refusal = device_.Try("cuMemSetAccess", [&](const Driver& driver) { return driver.MemorySetAccess(place, piece_nbytes_, &access, 1); });
    if (refusal) Cut(pieces_.size() - 1);
  } else {
    device_.Insist("cuMemRelease", [&](const Driver& driver) { return driver.MemoryRelease(handle); });
  }
  return refusal;
}

Refusal DeviceMemory::Extend(uint64_t pieces) noexcept {
  const uint64_t before = pieces_.size();
  while (pieces_.size() < pieces)
    if (const Refusal refusal = AddPiece()) return Cut(before), refusal;
  return {};
}

void DeviceMemory::Cut(uint64_t pieces) noexcept {
  while (pieces_.size() > pieces) {
    const DevicePointer place = base_ + (pieces_.size() - 1) * piece_nbytes_;
    if (device_.Insist("cuMemUnmap", [&](const Driver& driver) { return driver.MemoryUnmap(place, piece_nbytes_); })) return;
    const AllocationHandle handle = pieces_.back();
    pieces_.pop_back();
    device_.Insist("cuMemRelease", [&](const Driver& driver) { return driver.MemoryRelease(handle); });
  }
}

bool DeviceMemory::Reserve(uint64_t nbytes) {
  // No more than the memory in use and the size asked for now: another size may have been asked for before.
  const uint64_t pieces = Pieces(nbytes > nbytes_ ? nbytes : nbytes_);
  Cut(pieces);
  if (const Refusal refusal = Extend(pieces)) {
    if (refusal.result == kOutOfMemory) RaiseRefusal(nbytes);
    device_.Raise(refusal);
  }
  return true;
}

bool DeviceMemory::Resize(uint64_t nbytes, std::span<const Carried> moves, bool) noexcept {
  if (Extend(Pieces(nbytes))) return false;
  for (const Carried& one : moves) Copy(base() + one.to, base() + one.from, one.nbytes);
  Cut(Pieces(nbytes));
  nbytes_ = nbytes;
  return true;
}

void DeviceMemory::RaiseRefusal(uint64_t nbytes) const {
  device_.RequireAlive();
  RaiseError("BudgetError", device_.name(), " has no memory for an arena of ", nbytes, " bytes");
}

}  // namespace flexcomp::cuda

// An arena in a device's own memory: fixed addresses, and pieces of memory that are mapped and unmapped there.
#pragma once

#include <vector>

#include "cuda/device.h"
#include "cuda/stream_copies.h"
#include "memory/session_memory.h"

namespace flexcomp::cuda {

class DeviceMemory final : public SessionMemory {
 public:
  // Of `nbytes`, rounded up to whole pieces (2 MiB), with addresses for `most`. Throws BudgetError.
  DeviceMemory(Device& device, uint64_t nbytes, uint64_t most);
  ~DeviceMemory() override;

  std::byte* base() const noexcept override { return reinterpret_cast<std::byte*>(base_); }
  uint64_t nbytes() const noexcept override { return nbytes_; }
  uint64_t Resident() const override { return pieces_.size() * piece_nbytes_; }

  bool Reserve(uint64_t nbytes) override;
  bool Resize(uint64_t nbytes, std::span<const Carried> moves, bool sparse) noexcept override;
  [[noreturn]] void RaiseRefusal(uint64_t nbytes) const override;
  bool Discard(std::span<const Carried>) noexcept override { return false; }  // copies to the arena are the device's business
  bool Attach() override { return false; }
  bool visible() const noexcept override { return false; }
  void AwaitCaller() override { device_.FinishDefault(); }

  void Write(std::byte* place, const void* from, uint64_t nbytes) override { copies_.Write(place, from, nbytes); }
  void Read(void* to, const std::byte* place, uint64_t nbytes) override { copies_.Read(to, place, nbytes); }
  void Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept override { copies_.Copy(to, from, nbytes); }
  void Clear(std::byte* place, uint64_t nbytes) noexcept override { copies_.Clear(place, nbytes); }
  const std::byte* Look(const std::byte* place, uint64_t nbytes) override { return copies_.Look(place, nbytes); }

 private:
  uint64_t Pieces(uint64_t nbytes) const noexcept { return (nbytes + piece_nbytes_ - 1) / piece_nbytes_; }
  Refusal Extend(uint64_t pieces) noexcept;  // to that many; refused: nothing has changed
  Refusal AddPiece() noexcept;
  void Cut(uint64_t pieces) noexcept;  // to that many; pieces that the driver does not take back stay

  Device& device_;
  StreamCopies copies_;
  DevicePointer base_ = 0;
  uint64_t reserved_ = 0, nbytes_ = 0;
  size_t piece_nbytes_ = 0;
  std::vector<AllocationHandle> pieces_;  // from the base on
};

}  // namespace flexcomp::cuda

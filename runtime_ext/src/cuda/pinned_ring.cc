#include "cuda/pinned_ring.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"

namespace flexcomp::cuda {

PinnedRing::PinnedRing(Device& device) : device_(device) {
  void* data = ::mmap(nullptr, kPinnedNbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) RaiseError("ExecutionError", "no memory to read weights to: ", ErrnoText(errno));
  data_ = static_cast<std::byte*>(data);
  // Reads in flight belong to this process alone.
  ::madvise(data_, kPinnedNbytes, MADV_DONTFORK);
  try {
    device_.Do("cuMemHostRegister", [&](const Driver& driver) { return driver.HostRegister(data_, kPinnedNbytes, 0); });
    registered_ = true;
    for (Piece& piece : pieces_)
      device_.Do("cuEventCreate", [&](const Driver& driver) { return driver.EventCreate(&piece.event, kNoTiming); });
  } catch (...) {
    Release();
    throw;
  }
}

PinnedRing::~PinnedRing() { Release(); }

void PinnedRing::Release() noexcept {
  for (const Piece& piece : pieces_)
    if (piece.event != nullptr)
      device_.Insist("cuEventDestroy", [&](const Driver& driver) { return driver.EventDestroy(piece.event); });
  if (registered_) device_.Insist("cuMemHostUnregister", [&](const Driver& driver) { return driver.HostUnregister(data_); });
  ::munmap(data_, kPinnedNbytes);
}

uint64_t PinnedRing::Room(uint64_t nbytes) noexcept {
  if (count_ == 0) return 0;
  if (count_ == kPieces) return kPinnedNbytes;
  const Piece& newest = At(count_ - 1);
  const uint64_t oldest = At(0).begin, next = newest.begin + newest.nbytes;
  if (newest.begin < oldest) return next + nbytes <= oldest ? next : kPinnedNbytes;
  if (next + nbytes <= kPinnedNbytes) return next;
  return nbytes <= oldest ? 0 : kPinnedNbytes;
}

std::byte* PinnedRing::Begin(std::byte* place, uint64_t nbytes, Refusal* refusal) noexcept {
  uint64_t begin;
  while ((begin = Room(nbytes)) == kPinnedNbytes) {
    if (const Piece& oldest = At(0); oldest.copied) {
      *refusal = device_.Try("cuEventSynchronize", [&](const Driver& driver) { return driver.EventSynchronize(oldest.event); });
      if (*refusal) return nullptr;
    }
    first_ = (first_ + 1) % kPieces;
    --count_;
  }
  Piece& piece = At(count_++);
  ++reading_;
  piece.begin = begin;
  piece.nbytes = nbytes;
  piece.place = place;
  piece.copied = false;
  return data_ + begin;
}

Refusal PinnedRing::Copy() noexcept {
  Piece& piece = At(count_ - reading_--);
  const auto to = reinterpret_cast<DevicePointer>(piece.place), from = reinterpret_cast<DevicePointer>(data_ + piece.begin);
  Refusal refusal = device_.Try("cuMemcpyAsync", [&](const Driver& driver) { return driver.CopyAsync(to, from, piece.nbytes, device_.copy()); });
  if (!refusal)
    refusal = device_.Try("cuEventRecord", [&](const Driver& driver) { return driver.EventRecord(piece.event, device_.copy()); });
  piece.copied = !refusal;
  return refusal;
}

void PinnedRing::Drop() noexcept { --reading_; }

}  // namespace flexcomp::cuda

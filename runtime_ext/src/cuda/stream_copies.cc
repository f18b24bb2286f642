#include "cuda/stream_copies.h"

namespace flexcomp::cuda {
namespace {

DevicePointer PointerTo(const void* place) { return reinterpret_cast<DevicePointer>(place); }

}  // namespace

void StreamCopies::CopyNow(void* to, const void* from, uint64_t nbytes) {
  if (nbytes == 0) return;
  device_.Do("cuMemcpyAsync", [&](const Driver& driver) {
    return driver.CopyAsync(PointerTo(to), PointerTo(from), nbytes, device_.compute());
  });
  // Whoever called may use either place now.
  device_.Finish(device_.compute());
}

template <typename Function>
void StreamCopies::Insist(const char* call, const Function& function) noexcept {
  if (const Refusal refusal = device_.Insist(call, function)) device_.Lose(refusal);
  device_.Settle();
}

void StreamCopies::Copy(std::byte* to, const std::byte* from, uint64_t nbytes) noexcept {
  if (nbytes == 0 || to == from) return;
  // Places that overlap: pieces that do not, the one first that the others would be written over.
  const uint64_t distance = to < from ? from - to : to - from;
  uint64_t done = 0;  // a second attempt goes on from there: copied bytes may have been written over since
  Insist("cuMemcpyAsync", [&](const Driver& driver) {
    if (distance >= nbytes) return driver.CopyAsync(PointerTo(to), PointerTo(from), nbytes, device_.compute());
    while (done < nbytes) {
      const uint64_t piece = distance < nbytes - done ? distance : nbytes - done;
      const uint64_t at = to < from ? done : nbytes - done - piece;
      if (const Result result = driver.CopyAsync(PointerTo(to + at), PointerTo(from + at), piece, device_.compute())) return result;
      done += piece;
    }
    return kSuccess;
  });
}

void StreamCopies::Clear(std::byte* place, uint64_t nbytes) noexcept {
  if (nbytes == 0) return;
  Insist("cuMemsetD8Async",
         [&](const Driver& driver) { return driver.SetBytesAsync(PointerTo(place), 0, nbytes, device_.compute()); });
}

const std::byte* StreamCopies::Look(const std::byte* place, uint64_t nbytes) {
  looked_at_.resize(nbytes);
  CopyNow(looked_at_.data(), place, nbytes);
  return looked_at_.data();
}

}  // namespace flexcomp::cuda

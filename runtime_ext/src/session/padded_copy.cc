#include "session/padded_copy.h"

#include <algorithm>
#include <cstring>

namespace flexcomp {
namespace {

uint64_t ElementNbytes(const TensorType& type) noexcept { return type.dtype.bits / 8; }

// Bytes from one element to the next along an axis.
uint64_t StrideNbytes(const TensorType& type, size_t axis) noexcept { return static_cast<uint64_t>(type.strides[axis]) * ElementNbytes(type); }

bool SameFrom(const TensorType& whole, const TensorType& part, size_t axis) noexcept {
  return std::equal(whole.shape.begin() + static_cast<ptrdiff_t>(axis), whole.shape.end(), part.shape.begin() + static_cast<ptrdiff_t>(axis));
}

void Fill(std::byte* place, uint64_t nbytes, std::span<const std::byte> value) noexcept {
  if (std::ranges::all_of(value, [&](std::byte one) { return one == value.front(); })) {
    std::memset(place, static_cast<int>(value.front()), nbytes);
    return;
  }
  for (uint64_t at = 0; at < nbytes; at += value.size()) std::memcpy(place + at, value.data(), value.size());
}

// Calls with each run of bytes that both tensors have together, by their offsets, and with the runs after them that only `whole` has.
template <typename Both, typename Rest>
void Walk(const TensorType& whole, const TensorType& part, size_t axis, uint64_t in_whole, uint64_t in_part, const Both& both, const Rest& rest) noexcept {
  if (SameFrom(whole, part, axis)) {
    uint64_t nbytes = ElementNbytes(whole);
    for (size_t i = axis; i < whole.shape.size(); ++i) nbytes *= static_cast<uint64_t>(whole.shape[i]);
    both(in_whole, in_part, nbytes);
    return;
  }
  const uint64_t stride = StrideNbytes(whole, axis), count = static_cast<uint64_t>(part.shape[axis]);
  if (SameFrom(whole, part, axis + 1)) {
    both(in_whole, in_part, count * stride);
  } else {
    for (uint64_t i = 0; i < count; ++i) Walk(whole, part, axis + 1, in_whole + i * stride, in_part + i * StrideNbytes(part, axis), both, rest);
  }
  rest(in_whole + count * stride, (static_cast<uint64_t>(whole.shape[axis]) - count) * stride);
}

}  // namespace

void CopyPadded(std::byte* place, const TensorType& whole, const std::byte* from, const TensorType& part, std::span<const std::byte> value) noexcept {
  const auto copy = [&](uint64_t at, uint64_t of, uint64_t nbytes) { std::memcpy(place + at, from + of, nbytes); };
  Walk(whole, part, 0, 0, 0, copy, [&](uint64_t at, uint64_t nbytes) { Fill(place + at, nbytes, value); });
}

void CopyCut(std::byte* to, const TensorType& part, const std::byte* place, const TensorType& whole) noexcept {
  Walk(whole, part, 0, 0, 0, [&](uint64_t at, uint64_t of, uint64_t nbytes) { std::memcpy(to + of, place + at, nbytes); }, [](uint64_t, uint64_t) {});
}

}  // namespace flexcomp

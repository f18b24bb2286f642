#include "base/blake2b.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace flexcomp {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read in place");

constexpr std::array<uint64_t, 8> kStart = {0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
                                            0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};

constexpr uint8_t kOrder[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

inline void Mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t x, uint64_t y) noexcept {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

}  // namespace

Blake2b::Blake2b() noexcept : state_(kStart) { state_[0] ^= 0x01010000 ^ kNbytes; }

void Blake2b::Compress(const std::byte* block, bool last) noexcept {
  uint64_t m[16], v[16];
  std::memcpy(m, block, sizeof(m));
  for (size_t i = 0; i < 8; ++i) v[i] = state_[i], v[i + 8] = kStart[i];
  v[12] ^= count_;
  if (last) v[14] = ~v[14];
  // Unrolled: the words' places are constants then, and all of them stay in registers.
#pragma GCC unroll 12
  for (size_t round = 0; round < 12; ++round) {
    const auto& s = kOrder[round];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) Mix(v[i], v[4 + i], v[8 + i], v[12 + i], m[s[2 * i]], m[s[2 * i + 1]]);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i)
      Mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
  }
  for (size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

void Blake2b::Update(const std::byte* data, size_t nbytes) noexcept {
  while (nbytes > 0) {
    if (left_nbytes_ == kBlock) {  // more follows: this block is not the last
      count_ += kBlock;
      Compress(left_.data(), false);
      left_nbytes_ = 0;
    }
    if (left_nbytes_ == 0)
      for (; nbytes > kBlock; data += kBlock, nbytes -= kBlock) {
        count_ += kBlock;
        Compress(data, false);
      }
    const size_t part = std::min(nbytes, kBlock - left_nbytes_);
    std::memcpy(left_.data() + left_nbytes_, data, part);
    left_nbytes_ += part;
    data += part;
    nbytes -= part;
  }
}

Blake2b::Digest Blake2b::Finish() noexcept {
  count_ += left_nbytes_;
  std::fill(left_.begin() + static_cast<std::ptrdiff_t>(left_nbytes_), left_.end(), std::byte{0});
  Compress(left_.data(), true);
  Digest digest;
  std::memcpy(digest.data(), state_.data(), kNbytes);
  return digest;
}

}  // namespace flexcomp

// BLAKE2b (RFC 7693) without a key, with digests of 16 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flexcomp {

class Blake2b {
 public:
  static constexpr size_t kNbytes = 16;
  using Digest = std::array<uint8_t, kNbytes>;

  Blake2b() noexcept;
  void Update(const std::byte* data, size_t nbytes) noexcept;
  Digest Finish() noexcept;  // of all bytes; nothing may follow

 private:
  static constexpr size_t kBlock = 128;

  void Compress(const std::byte* block, bool last) noexcept;

  std::array<uint64_t, 8> state_;
  uint64_t count_ = 0;  // bytes that are compressed
  std::array<std::byte, kBlock> left_;
  size_t left_nbytes_ = 0;
};

}  // namespace flexcomp

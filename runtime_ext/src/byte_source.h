// Where bytes come from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexcomp {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills [target, target + nbytes) from `offset` on; all three are multiples of kPage. Where the source
  // ends inside the range, the rest of the target is left as it is. Returns 0 or an errno value.
  // Called by one thread at a time; does not allocate.
  virtual int Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept = 0;

  // Whether reads bypass the page cache.
  virtual bool direct() const noexcept = 0;
};

}  // namespace flexcomp

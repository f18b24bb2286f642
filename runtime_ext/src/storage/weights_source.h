// Where a model's weights come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>

namespace flexcomp {

// Bytes of a file that the caller has open; the descriptor is needed while the source is opened only.
struct DescriptorRange {
  int descriptor = -1;
  uint64_t offset = 0, nbytes = 0;
};

// A function that gives bytes.
struct Reader {
  // Fills [target, target + nbytes) from `offset` on. Returns how many bytes it wrote, 1 at least, or a negative errno value:
  // -ECANCELED cancels the inference. Must not throw.
  std::function<int64_t(uint64_t offset, std::byte* target, uint64_t nbytes)> read;
  uint64_t nbytes = 0;      // that there are
  bool concurrent = false;  // several threads may call it at a time
  const char* name = "";    // for messages
};

// A string: the name of a file.
using WeightsSource = std::variant<std::string, DescriptorRange, Reader>;

// For messages.
inline std::string NameOf(const std::string& path) { return "the weights file " + path; }
inline std::string NameOf(const DescriptorRange& range) {
  return "the weights source (descriptor " + std::to_string(range.descriptor) + ", from byte " + std::to_string(range.offset) + ")";
}
inline std::string NameOf(const Reader& reader) { return std::string("the weights source (") + reader.name + ")"; }

}  // namespace flexcomp

// Weights that networks of a pool have in common, each once in memory.
//
// A library tells digests of its weights, and which weights stay whole on each rung. Weights that stay in two networks at least are
// shared: they lie outside of the networks' kept ranges, the network that needs them first makes them, and checks them against the
// digest. Holders are counted.
#pragma once

#include <tvm/ffi/string.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pool/lane_memory.h"

namespace flexcomp {

class Network;

struct SharedWeights {
  SharedWeights(std::string key, uint64_t nbytes) : key(std::move(key)), nbytes(nbytes) {}

  std::byte* base() const noexcept { return memory->base() + at; }

  enum class Contents {
    kNone,
    kBeingMade,
    kThere
  };

  const std::string key;
  const uint64_t nbytes;  // whole pages of the system
  std::shared_ptr<LaneMemory> memory;  // with other weights, so that huge pages may hold them
  uint64_t at = 0;                     // in this memory
  // Of the pool, which guards them.
  uint32_t holders = 0;  // networks that may read the weights; 0: no memory is claimed
  Contents contents = Contents::kNone;
};

// The weights of one network on one rung that other networks have, too.
struct Common {
  using Weights = std::vector<std::pair<uint32_t, std::shared_ptr<SharedWeights>>>;  // by the library's number

  Common(Weights weights, uint64_t kept);
  uint64_t nbytes() const noexcept;

  const Weights weights;
  const uint64_t kept;            // bytes of the network's own kept range
  const tvm::ffi::Bytes places;   // as sessions take them
};

using Networks = std::vector<std::shared_ptr<Network>>;
using Rungs = std::vector<uint32_t>;                      // one for each network
using Commons = std::vector<std::shared_ptr<const Common>>;  // nullptr: nothing is shared

// Bytes that are not held twice where networks use these rungs.
uint64_t SavedNbytes(const Networks& networks, const Rungs& rungs);
// What these networks share. With `keeps` a network that goes on using a rung also keeps what nobody else shares any more: so
// it need not read that again.
Commons ShareWeights(const Networks& networks, const Rungs& rungs, bool keeps);
// Bytes of all shared weights.
uint64_t CommonNbytes(const Commons& commons);

}  // namespace flexcomp

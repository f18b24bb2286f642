// Rungs of networks with equal weights.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/shared_weights.h"
#include "pool/shares.h"

namespace flexcomp {

// Changes the rungs of two networks with equal weights at a time, to the best ones of `models` within the budget, until no such change
// is better, or after some ten milliseconds. `among` has the number of each model's rungs in its network's ladder; `rungs` fit.
void ImproveShared(const Networks& networks, const std::vector<ShareModel>& models, const std::vector<Rungs>& among, uint64_t budget,
                   Rungs& rungs);

}  // namespace flexcomp

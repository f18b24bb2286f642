// How fast the loader reads the weights file, whatever a plan loads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "storage/loader.h"

namespace flexcomp {

// Bytes per second, of at least `nbytes` in requests of about `request_nbytes`, which are read all over an arena again and
// again. `loader` must be at rest, and is left without loads. nullopt: the loader was told to end.
std::optional<double> MeasureReadRate(Loader& loader, std::span<std::byte> arena, uint64_t data_nbytes,
                                      uint64_t request_nbytes, uint64_t nbytes);

}  // namespace flexcomp

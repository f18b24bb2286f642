// The system's figures of this process's memory.
#pragma once

#include <cstdint>

namespace flexcomp::runner {

uint64_t RssBytes();
uint64_t PeakRssBytes();  // since the start or the last reset

// Makes the peak start afresh from now; false where the system does not allow that.
bool ResetPeakRss();

}  // namespace flexcomp::runner

// The system's figures of other work on this process's cores.
#pragma once

#include <cstdint>
#include <optional>

namespace flexcomp::runner {

// Nanoseconds in which the threads that now live were ready to run while something else had the core, all together;
// nothing where the system does not say.
std::optional<int64_t> CoreWaitNs();

}  // namespace flexcomp::runner

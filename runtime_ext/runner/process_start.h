// When this process started.
#pragma once

#include <cstdint>
#include <optional>

namespace flexcomp::runner {

int64_t MonotonicNs();

// Nanoseconds of the monotonic clock. To be called first of all: the start is taken to lie as far back as the process
// has computed and waited for a core since, as the system counts to the nanosecond. Earlier waits for storage, which
// has to bring a program and its libraries where no memory holds them, are known only to the process that started this
// one.
int64_t ProcessStartNs();

}  // namespace flexcomp::runner

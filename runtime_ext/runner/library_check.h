// Whether a file can be mapped as a library.
#pragma once

#include <string>

namespace flexcomp::runner {

// Refuses a file that is no library for this machine, or is cut short: the dynamic linker maps what the file's tables promise,
// and touching what is missing ends the process. Throws std::runtime_error.
void CheckLibrary(const std::string& path);

}  // namespace flexcomp::runner

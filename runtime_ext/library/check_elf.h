// Whether a file can be mapped as a library.
#pragma once

#include <string>

namespace flexcomp {

// Refuses a file that is no library for this machine, or is cut short: the dynamic linker maps the ranges that the
// file's tables promise, and touching a missing range ends the process. Throws ArtifactError.
void CheckElf(const std::string& path);

}  // namespace flexcomp

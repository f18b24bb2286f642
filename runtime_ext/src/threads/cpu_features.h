// The features of this machine's processor.
#pragma once

#include <string>
#include <vector>

namespace flexcomp {

// The features that this machine lacks; names as in /proc/cpuinfo.
std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>& wanted);

// Asks the kernel for the registers of AMX's tiles, if `wanted` has these: for all threads of the process, present and future.
// Returns 0, or the error by which the kernel refuses.
int RequestTiles(const std::vector<std::string>& wanted);

}  // namespace flexcomp

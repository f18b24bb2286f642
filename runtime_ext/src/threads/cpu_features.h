// The features of this machine's processor.
#pragma once

#include <string>
#include <vector>

namespace flexcomp {

// The features that this machine lacks; names as in /proc/cpuinfo.
std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>& wanted);

}  // namespace flexcomp

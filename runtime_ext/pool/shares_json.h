// Shares as JSON, for callers across the module interface.
#pragma once

#include <string>

namespace flexcomp {

// Of {"budget_bytes", "strategy": "exact" or "swapnet", "models": [{"weight", "lane", "rungs": [[working bytes, kept bytes,
// time], ...]}, ...]} makes {"least_bytes", "bytes", "cost", "points", "rungs"}; of a budget that is less than least_bytes
// no rungs. Throws InputError for anything else.
std::string SharesOf(const std::string& request);

// Throws InputError unless `strategy` is one of these two.
void RequireShareStrategy(const std::string& strategy);

}  // namespace flexcomp

// Reasons of reads that failed.
#pragma once

#include <string>

namespace flexcomp {

// Of an errno value, or an error of ByteSource.
std::string ReadErrorText(int error);

// For ECANCELED: throws CancelledError.
[[noreturn]] void RaiseReadCancelled();

}  // namespace flexcomp

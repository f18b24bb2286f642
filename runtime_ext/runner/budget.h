// Budgets as people write them, as in flexcomp/runtime/budget.py.
#pragma once

#include <flexcomp.h>

#include <cstdint>
#include <optional>
#include <string>

namespace flexcomp::runner {

// In which a budget was given, and is answered.
enum class Units {
  kBinary,
  kDecimal,
  kBytes
};

struct Budget {
  std::optional<uint64_t> nbytes;  // or
  std::optional<double> fraction;  // of the size with everything resident, or
  bool smallest = false;           // the smallest plan's needs, or
  bool largest = false;            // everything resident; none of them: the library's default
  Units units = Units::kBinary;

  uint64_t Bytes(uint64_t min_bytes, uint64_t default_bytes, uint64_t resident_bytes) const;
};

// An empty text means the default. Throws UsageError.
Budget ParseBudget(const std::string& given);

// "1.18 MiB"; a sufficient budget is rounded up.
std::string HumanBytes(uint64_t nbytes, Units units);
std::string Enough(uint64_t nbytes, Units units);

// The message for a budget of `asked` bytes.
std::string TooSmall(uint64_t asked, const flexcomp_session_info& info, Units units);

}  // namespace flexcomp::runner

// Budgets as people write them, as in flexcomp/runtime/budget.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace flexcomp::runner {

// In which a budget was given, and is answered.
enum class Units { kBinary, kDecimal, kBytes };

struct Budget {
  std::optional<uint64_t> nbytes;  // or
  std::optional<double> fraction;  // of the size with everything resident, or
  bool smallest = false;           // what the smallest plan needs, or
  bool largest = false;            // everything resident; none of them: the library's default
  Units units = Units::kBinary;

  uint64_t Bytes(uint64_t min_bytes, uint64_t default_bytes, uint64_t resident_bytes) const;
};

// An empty text means the default. Throws UsageError.
Budget ParseBudget(const std::string& given);

// "1.18 MiB"; what is enough is rounded up.
std::string HumanBytes(uint64_t nbytes, Units units);
std::string Enough(uint64_t nbytes, Units units);

// What to say of a budget of `asked` bytes. `minimum` is what the library's metadata has of the smallest one; may be empty.
std::string TooSmall(uint64_t asked, uint64_t smallest, const std::string& minimum, Units units);

}  // namespace flexcomp::runner

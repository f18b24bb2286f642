#include "budget.h"

#include <cctype>
#include <charconv>
#include <cstdio>
#include <span>
#include <sstream>
#include <utility>

#include "arguments.h"

namespace flexcomp::runner {
namespace {

struct Unit {
  const char* name;
  double nbytes;
};

constexpr Unit kBinaryUnits[] = {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}};
constexpr Unit kDecimalUnits[] = {{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}};

struct Written {
  const char* name;
  double factor;
  Units units;
};

constexpr Written kWritten[] = {
    {"", 1, Units::kBytes},
    {"b", 1, Units::kBytes},
    {"k", 1e3, Units::kDecimal},
    {"m", 1e6, Units::kDecimal},
    {"g", 1e9, Units::kDecimal},
    {"kb", 1e3, Units::kDecimal},
    {"mb", 1e6, Units::kDecimal},
    {"gb", 1e9, Units::kDecimal},
    {"kib", 0x1p10, Units::kBinary},
    {"mib", 0x1p20, Units::kBinary},
    {"gib", 0x1p30, Units::kBinary},
};

std::span<const Unit> UnitsOf(Units units) {
  if (units == Units::kBytes) return {};
  return units == Units::kDecimal ? std::span(kDecimalUnits) : std::span(kBinaryUnits);
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// 1234567 → "1,234,567".
std::string WithCommas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

std::string InHundredths(uint64_t hundredths, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%llu.%02llu %s", static_cast<unsigned long long>(hundredths / 100),
                static_cast<unsigned long long>(hundredths % 100), unit);
  return text;
}

std::optional<double> Amount(const std::string& number) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc{} || end != number.data() + number.size() || value < 0) return std::nullopt;
  return value;
}

// "1234 of weights, 56 of scratch" with readable numbers.
std::string Readable(const std::string& needs, Units units) {
  std::string text;
  std::istringstream all(needs);
  for (std::string need; std::getline(all >> std::ws, need, ',');) {
    size_t digits = 0;
    const uint64_t nbytes = std::stoull(need, &digits);
    text += (text.empty() ? " " : ", ") + HumanBytes(nbytes, units) + need.substr(digits);
  }
  return text;
}

}  // namespace

uint64_t Budget::Bytes(uint64_t min_bytes, uint64_t default_bytes, uint64_t resident_bytes) const {
  if (nbytes) return *nbytes;
  if (fraction) return static_cast<uint64_t>(*fraction * static_cast<double>(resident_bytes));
  return smallest  ? min_bytes
         : largest ? resident_bytes
                   : default_bytes;
}

Budget ParseBudget(const std::string& given) {
  std::string text = Trimmed(given);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text.empty() || text == "none") return {};
  if (text == "min") return {.smallest = true};
  if (text == "all") return {.largest = true};
  const size_t digits = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, digits);
  const std::string unit = digits == std::string::npos ? "" : Trimmed(text.substr(digits));
  if (const auto amount = Amount(number)) {
    const bool percent = unit == "%";
    if (percent || (unit.empty() && number.find('.') != std::string::npos)) {
      const double fraction = percent ? *amount / 100 : *amount;
      if (fraction > 0 && fraction <= 1) return {.fraction = fraction};
    } else {
      for (const Written& written : kWritten) {
        const double nbytes = *amount * written.factor;
        if (unit == written.name && nbytes >= 1 && nbytes < 0x1p63)
          return {.nbytes = static_cast<uint64_t>(nbytes), .units = written.units};
      }
    }
  }
  throw UsageError("cannot read the budget \"" + given +
                   "\": write bytes, 64MB, 64MiB, a fraction of the resident size such as 0.1 or 10%, min or all");
}

std::string HumanBytes(uint64_t nbytes, Units units) {
  for (const Unit& unit : UnitsOf(units)) {
    if (static_cast<double>(nbytes) < unit.nbytes) continue;
    char text[64];
    std::snprintf(text, sizeof text, "%.2f %s", static_cast<double>(nbytes) / unit.nbytes, unit.name);
    return text;
  }
  return WithCommas(nbytes) + " B";
}

std::string Enough(uint64_t nbytes, Units units) {
  for (const Unit& unit : UnitsOf(units)) {
    const auto size = static_cast<uint64_t>(unit.nbytes);
    if (nbytes >= size) return InHundredths((nbytes / size) * 100 + (nbytes % size * 100 + size - 1) / size, unit.name);
  }
  return WithCommas(nbytes) + " B";
}

std::string TooSmall(uint64_t asked, const flexcomp_session_info& info, Units units) {
  const std::string layer = info.layer, by = layer.empty() ? "" : ", set by layer " + layer + ":" + Readable(info.needs, units);
  return "a budget of " + HumanBytes(asked, units) + " is too small: the smallest feasible budget is " + Enough(info.smallest, units) + by;
}

}  // namespace flexcomp::runner

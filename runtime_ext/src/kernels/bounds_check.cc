#include "kernels/bounds_check.h"

#include <sstream>

namespace flexcomp {
namespace {

std::string Describe(int64_t value, uint64_t position, const Bound& bound) {
  std::ostringstream out;
  out << "index " << value << " at position " << position << " is outside of [" << bound.low << ", " << bound.high << ")";
  return out.str();
}

template <typename T>
std::string Find(const BoundsCheck& check) {
  const T* values = reinterpret_cast<const T*>(check.data);
  const size_t period = check.bounds.size();
  for (size_t b = 0; b < period; ++b) {
    const auto [low, high] = check.bounds[b];
    for (uint64_t i = b; i < check.count; i += period)
      if (values[i] < low || values[i] >= high) return Describe(values[i], i, check.bounds[b]);
  }
  return {};
}

}  // namespace

std::string FindOutside(const BoundsCheck& check) { return check.wide ? Find<int64_t>(check) : Find<int32_t>(check); }

}  // namespace flexcomp

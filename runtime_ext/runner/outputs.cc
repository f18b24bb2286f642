#include "outputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "narrow.h"
#include "npy.h"

namespace flexcomp::runner {
namespace {

// Of the largest output, as between two implementations; where outputs are rounded to fewer bits, of that rounding.
constexpr float kTolerance = 1e-4f, kFloat16Tolerance = 0x1p-10f, kBfloat16Tolerance = 0x1p-7f;

template <typename T>
bool Close(const std::byte* expected, const std::byte* given, size_t nbytes, float tolerance) {
  const auto* a = reinterpret_cast<const T*>(expected);
  const auto* b = reinterpret_cast<const T*>(given);
  const size_t count = nbytes / sizeof(T);
  const auto at = [](const T& value) { return static_cast<float>(value); };
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(at(a[i])));
  for (size_t i = 0; i < count; ++i)
    if (!(std::abs(at(a[i]) - at(b[i])) <= tolerance * largest)) return false;
  return true;
}

bool Agree(const Port& port, const std::byte* expected, const std::byte* given) {
  if (port.dtype == FLEXCOMP_FLOAT32) return Close<float>(expected, given, port.nbytes, kTolerance);
  if (port.dtype == FLEXCOMP_FLOAT16) return Close<Float16>(expected, given, port.nbytes, kFloat16Tolerance);
  if (port.dtype == FLEXCOMP_BFLOAT16) return Close<Bfloat16>(expected, given, port.nbytes, kBfloat16Tolerance);
  return std::memcmp(expected, given, port.nbytes) == 0;
}

}  // namespace

Outputs::Outputs(std::vector<Port> ports, const std::string& folder) : ports_(std::move(ports)) {
  if (folder.empty()) return;
  for (const Port& port : ports_) {
    std::string name = port.name;
    std::replace(name.begin(), name.end(), '/', '_');
    std::string file = folder + "/" + name + ".npy";
    if (std::find(files_.begin(), files_.end(), file) != files_.end())
      throw std::runtime_error("two outputs would be written to " + file);
    files_.push_back(std::move(file));
  }
  std::filesystem::create_directories(folder);
}

void Outputs::Write(Places places) const {
  for (size_t i = 0; i < files_.size(); ++i)
    WriteNpy(files_[i], ports_[i].dtype, ports_[i].shape, DataOf(places[i]), ports_[i].nbytes);
}

void Expected::Remember(Places places) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    const std::byte* data = DataOf(places[i]);
    values_.emplace_back(data, data + ports_[i].nbytes);
  }
}

bool Expected::Agrees(Places places) const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (!Agree(ports_[i], values_[i].data(), DataOf(places[i]))) return false;
  return true;
}

}  // namespace flexcomp::runner

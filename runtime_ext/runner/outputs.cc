#include "outputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "npy.h"

namespace flexcomp::runner {
namespace {

constexpr float kTolerance = 1e-4f;  // of the largest output, as between two implementations

bool Agree(const Port& port, const std::byte* expected, const std::byte* given) {
  if (!port.is_float32()) return std::memcmp(expected, given, port.nbytes) == 0;
  const auto* a = reinterpret_cast<const float*>(expected);
  const auto* b = reinterpret_cast<const float*>(given);
  const size_t count = port.nbytes / sizeof(float);
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(a[i]));
  for (size_t i = 0; i < count; ++i)
    if (!(std::abs(a[i] - b[i]) <= kTolerance * largest)) return false;
  return true;
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

void Outputs::Write(tvm::ffi::PackedArgs places) const {
  for (size_t i = 0; i < files_.size(); ++i)
    WriteNpy(files_[i], ports_[i].dtype, ports_[i].shape, DataOf(places[static_cast<int>(i)]), ports_[i].nbytes);
}

void Expected::Remember(tvm::ffi::PackedArgs places) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    const std::byte* data = DataOf(places[static_cast<int>(i)]);
    values_.emplace_back(data, data + ports_[i].nbytes);
  }
}

bool Expected::Agrees(tvm::ffi::PackedArgs places) const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (!Agree(ports_[i], values_[i].data(), DataOf(places[static_cast<int>(i)]))) return false;
  return true;
}

}  // namespace flexcomp::runner

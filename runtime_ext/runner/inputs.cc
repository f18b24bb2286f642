#include "inputs.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

#include "arguments.h"

namespace flexcomp::runner {
namespace {

template <typename T>
void FillNormal(std::byte* data, size_t nbytes, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  auto* out = reinterpret_cast<T*>(data);
  for (size_t i = 0; i < nbytes / sizeof(T); ++i) out[i] = static_cast<T>(normal(random));
}

}  // namespace

Inputs::Inputs(std::vector<Port> ports, const std::map<std::string, std::string>& files, uint64_t seed)
    : ports_(std::move(ports)), seed_(seed) {
  for (const auto& [name, path] : files) {
    const auto port = std::ranges::find(ports_, name, &Port::name);
    if (port == ports_.end()) throw UsageError("the model has no input called " + name);
    try {
      files_.emplace(name, NpyFile(path, port->dtype, port->shape));
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  }
}

void Inputs::Fill(tvm::ffi::PackedArgs places) const {
  std::mt19937_64 random(seed_);
  for (size_t i = 0; i < ports_.size(); ++i) {
    const Port& port = ports_[i];
    std::byte* data = DataOf(places[static_cast<int>(i)]);
    if (const auto file = files_.find(port.name); file != files_.end())
      file->second.Read(data, port.nbytes);
    else if (port.is_float32())
      FillNormal<float>(data, port.nbytes, random);
    else if (port.is_float64())
      FillNormal<double>(data, port.nbytes, random);
    else
      std::memset(data, 0, port.nbytes);
  }
}

}  // namespace flexcomp::runner

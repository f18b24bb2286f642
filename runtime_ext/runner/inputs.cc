#include "inputs.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "arguments.h"
#include "narrow.h"

namespace flexcomp::runner {
namespace {

// Random bits (Steele et al., "Fast splittable pseudorandom number generators", 2014: SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  }

 private:
  uint64_t state_;
};

// Close to a normal distribution of mean 0 and deviation 1: the sum of four uniform numbers. Budgets are switched while
// inputs are filled, and a switch waits for the filling: drawing from the exact distribution takes longer than small
// networks do.
template <typename T>
void FillNormal(std::byte* data, size_t nbytes, Random& random) {
  constexpr double kMean = 4 * 65535 / 2.0, kDeviation = 37837.0;  // sqrt(4 * (65536^2 - 1) / 12)
  auto* out = reinterpret_cast<T*>(data);
  for (size_t i = 0; i < nbytes / sizeof(T); ++i) {
    const uint64_t bits = random();
    const auto sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    out[i] = static_cast<T>((static_cast<double>(sum) - kMean) / kDeviation);
  }
}

std::string Listed(const std::vector<Port>& ports) {
  std::string text;
  for (const Port& port : ports) text += (text.empty() ? "" : ", ") + port.name;
  return text.empty() ? "none" : text;
}

}  // namespace

Inputs::Inputs(std::vector<Port> ports, const std::map<std::string, std::string>& files, uint64_t seed)
    : ports_(std::move(ports)), seed_(seed) {
  for (const auto& [name, path] : files) {
    const auto port = std::ranges::find(ports_, name, &Port::name);
    if (port == ports_.end()) throw UsageError("the model has no input called " + name + "; it has " + Listed(ports_));
    try {
      files_.emplace(name, NpyFile(path, port->dtype, port->shape));
    } catch (const std::runtime_error& error) {
      throw UsageError(error.what());
    }
  }
}

void Inputs::Fill(Places places) const {
  Random random(seed_);
  for (size_t i = 0; i < ports_.size(); ++i) {
    const Port& port = ports_[i];
    std::byte* data = DataOf(places[i]);
    if (const auto file = files_.find(port.name); file != files_.end())
      file->second.Read(data, port.nbytes);
    else if (port.dtype == FLEXCOMP_FLOAT32)
      FillNormal<float>(data, port.nbytes, random);
    else if (port.dtype == FLEXCOMP_FLOAT64)
      FillNormal<double>(data, port.nbytes, random);
    else if (port.dtype == FLEXCOMP_FLOAT16)
      FillNormal<Float16>(data, port.nbytes, random);
    else if (port.dtype == FLEXCOMP_BFLOAT16)
      FillNormal<Bfloat16>(data, port.nbytes, random);
    else
      std::memset(data, 0, port.nbytes);
  }
}

}  // namespace flexcomp::runner

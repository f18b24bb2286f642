// Where the outputs go, and their expected values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ports.h"

namespace flexcomp::runner {

// Writes outputs to files; without a folder outputs are dropped.
class Outputs {
 public:
  // Creates the folder. Throws std::runtime_error if two outputs would share a file.
  Outputs(std::vector<Port> ports, const std::string& folder);

  void Write(Places places) const;

 private:
  std::vector<Port> ports_;
  std::vector<std::string> files_;
};

// The result of every inference on the same inputs, up to the rounding of other kernels.
class Expected {
 public:
  explicit Expected(std::vector<Port> ports) : ports_(std::move(ports)) {}

  void Remember(Places places);
  bool Agrees(Places places) const;

 private:
  std::vector<Port> ports_;
  std::vector<std::vector<std::byte>> values_;
};

}  // namespace flexcomp::runner

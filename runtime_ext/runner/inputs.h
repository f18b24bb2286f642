// Where the inputs come from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "npy.h"
#include "ports.h"

namespace flexcomp::runner {

// Every inference gets the same inputs, written straight into the arena: from files, or random ones.
class Inputs {
 public:
  // `files`: by name. Opens the files and checks their contents. Throws UsageError, std::runtime_error.
  Inputs(std::vector<Port> ports, const std::map<std::string, std::string>& files, uint64_t seed);

  void Fill(Places places) const;

 private:
  std::vector<Port> ports_;
  uint64_t seed_;
  std::map<std::string, NpyFile> files_;
};

}  // namespace flexcomp::runner

// Weights that several sessions can have in common: all weights of a layer, in the form that its kernel takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/blake2b.h"
#include "program/program.h"

namespace flexcomp {

struct Shareable {
  std::string key;        // of equal bytes, made the same: a digest of the stored weights, the kernel that prepares them, a size
  uint64_t nbytes;
  uint32_t layer;         // one of those that take these weights
  Blake2b::Digest stored; // of the bytes in the file
  uint64_t room;          // bytes for reading the smallest piece that can be made
};

struct Shareables {
  static constexpr uint32_t kNone = UINT32_MAX;

  std::vector<Shareable> all;
  std::vector<uint32_t> of_layer;  // an index into `all`, or kNone
};

// By the digests in the program's metadata; without these, and for weights below a few pages, there are none. Throws ArtifactError.
Shareables FindShareables(const Program& program);

// One of these in a rung in which all of it stays in the arena, in places of its own.
struct Resting {
  struct Part {
    uint64_t at, nbytes, offset;  // address in the arena, and in the weights
  };

  uint32_t shareable;
  std::vector<Part> parts;        // of its steps, ascending
  std::vector<uint32_t> loads;    // which bring nothing else
  std::vector<FileRange> pages;   // of the arena, which hold nothing else, ascending

  uint64_t freed() const;         // bytes of these pages
};

std::vector<Resting> FindResting(const Rung& rung, const Program& program, const Shareables& shareables);

}  // namespace flexcomp

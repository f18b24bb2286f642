// A decoder's library as what it is for: tokens in, logits of the next token out, as flexcomp/generation/decoder.py.
#pragma once

#include <dlpack/dlpack.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "program/shapes.h"

namespace flexcomp {

class Decoder {
 public:
  using OnTensors = std::function<void(std::span<DLTensor>)>;
  // One inference in a shape of the library. `fill` writes the inputs; `drain`, if any, reads the outputs.
  using Infer = std::function<void(size_t shape, const OnTensors& fill, const OnTensors& drain)>;

  // Throws an error of kind Unsupported for a library that is no decoder of one sequence with caches as its states.
  explicit Decoder(const Shapes& shapes);

  uint64_t vocabulary() const noexcept { return vocabulary_; }
  uint64_t capacity() const noexcept { return capacity_; }       // tokens that the caches hold
  uint64_t longest() const noexcept { return sizes_.back().first; }  // tokens of one inference

  // Takes tokens after the first `position` ones, in as few inferences as shapes allow. `logits`, if any, are those that follow the last
  // token. Throws InputError for tokens or positions that the decoder does not have, and as inferences do.
  void Take(const Infer& infer, uint64_t position, std::span<const int64_t> tokens, std::span<float> logits) const;

 private:
  enum class Role {
    kIds,
    kMask,
    kPlaces,
    kStart
  };

  // The number of tokens of the next inference, and its shape.
  std::pair<uint64_t, size_t> ChooseSize(uint64_t begin, uint64_t left) const;
  void Fill(std::span<DLTensor> inputs, uint64_t size, uint64_t begin, std::span<const int64_t> piece) const;

  std::vector<Role> roles_;  // of the inputs
  uint64_t capacity_ = 0, vocabulary_ = 0;
  size_t logits_ = 0;                               // the output
  std::vector<std::pair<uint64_t, size_t>> sizes_;  // tokens that a shape takes, ascending, and the shape
  bool gives_all_ = true;                           // logits of all tokens: the last tokens of an inference may be none
};

// The likeliest token.
inline int64_t Likeliest(std::span<const float> logits) { return std::ranges::max_element(logits) - logits.begin(); }

}  // namespace flexcomp

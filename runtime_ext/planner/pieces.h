// Units of loading: the weights of a step, or of several small steps in a row (flexcomp/plan, pieces.py).
#pragma once

#include <array>
#include <vector>

#include "problem.h"

namespace flexcomp::planner {

// A segment that has no place yet, for steps [step, end).
struct Piece {
  int64_t step, end, source, nbytes, form;

  std::array<int64_t, 3> key() const { return {form, source, nbytes}; }  // of its bytes
  int64_t pages() const { return nbytes / kPage; }
};

// One for every step that has weights.
void PiecesOf(const Problem& problem, const std::vector<Step>& steps, std::vector<Piece>* pieces);

// Per piece the position of the first piece with the same pages; steps flagged in `apart` are compared only with each other.
std::vector<size_t> FirstAlike(const std::vector<Piece>& pieces, const std::vector<char>& apart);

// Neighbours in one, while the result has at most `most` bytes and fits in limit[layer] of all layers of its steps; but not
// pieces of steps flagged in `apart`.
void Join(const std::vector<Step>& steps, const std::vector<int64_t>& limit, int64_t most, const std::vector<char>& apart,
          std::vector<Piece>* pieces);

}  // namespace flexcomp::planner

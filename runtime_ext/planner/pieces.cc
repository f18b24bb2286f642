#include "pieces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "slicing.h"

namespace flexcomp::planner {

void PiecesOf(const Problem& problem, const std::vector<Step>& steps, std::vector<Piece>* pieces) {
  pieces->clear();
  for (size_t index = 0; index < steps.size(); ++index) {
    const Layer& layer = problem.layers[steps[index].layer];
    if (!layer.weighted()) continue;
    const FileRange range = FileRangeOf(layer.weights, steps[index].first, steps[index].count);
    const int64_t step = static_cast<int64_t>(index);
    pieces->push_back({step, step + 1, range.source, range.nbytes, layer.weights.form});
  }
}

std::vector<size_t> FirstAlike(const std::vector<Piece>& pieces, const std::vector<char>& apart) {
  std::map<std::pair<bool, std::array<int64_t, 3>>, size_t> first;
  std::vector<size_t> alike;
  for (const Piece& piece : pieces) {
    const std::pair key{apart[piece.step] != 0, piece.key()};
    alike.push_back(first.emplace(key, alike.size()).first->second);
  }
  return alike;
}

void Join(const std::vector<Step>& steps, const std::vector<int64_t>& limit, int64_t most, const std::vector<char>& apart,
          std::vector<Piece>* pieces) {
  const auto least = [&](int64_t begin, int64_t end) {  // of the limits of these steps
    int64_t result = INT64_MAX;
    for (int64_t step = begin; step < end; ++step) result = std::min(result, limit[steps[step].layer]);
    return result;
  };
  size_t done = 0;
  int64_t fits = 0;  // bytes, in all steps of the last piece that is done
  for (const Piece piece : *pieces) {
    if (done) {
      Piece& last = (*pieces)[done - 1];
      const int64_t behind = last.source + last.nbytes - piece.source;  // 0 or a page that both need
      const int64_t nbytes = piece.source + piece.nbytes - last.source;
      const bool neighbours = piece.form == last.form && (behind == 0 || behind == kPage);
      if (neighbours && !apart[piece.step] && !apart[last.step] && nbytes <= most) {
        const int64_t all = std::min(fits, least(last.end, piece.end));
        if (nbytes <= all) {
          last = {last.step, piece.end, last.source, nbytes, last.form};
          fits = all;
          continue;
        }
      }
    }
    fits = least(piece.step, piece.end);
    (*pieces)[done++] = piece;
  }
  pieces->resize(done);
}

}  // namespace flexcomp::planner

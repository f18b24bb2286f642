#include "slicing.h"

#include <algorithm>

namespace flexcomp::planner {
namespace {

int64_t LargestSegment(const Weights& weights, int64_t slices) {
  int64_t largest = 0, first = 0;
  for (int64_t slice = 1; slice <= slices; ++slice) {
    const int64_t end = weights.blocks * slice / slices;
    largest = std::max(largest, FileRangeOf(weights, first, end - first).nbytes);
    first = end;
  }
  return largest;
}

// The smallest number of equal slices whose segments all fit in `limit` bytes; 0 if not even a block does.
int64_t SliceCount(const Weights& weights, int64_t limit) {
  const int64_t whole = std::max<int64_t>(1, std::min(weights.blocks, limit / weights.block_nbytes));
  for (int64_t slices = (weights.blocks + whole - 1) / whole; slices <= weights.blocks; ++slices) {
    if (LargestSegment(weights, slices) <= limit) return slices;
  }
  return 0;
}

}  // namespace

FileRange FileRangeOf(const Weights& weights, int64_t first, int64_t count) {
  const int64_t begin = weights.offset + first * weights.block_nbytes;
  const int64_t source = begin - begin % kPage;
  const int64_t end = begin + count * weights.block_nbytes;
  return {source, (end + kPage - 1) / kPage * kPage - source};
}

int64_t StoredPages(const Stored& stored, int64_t first, int64_t count) {
  const int64_t last = stored.channels - stored.prepared;
  const int64_t begin = std::min(first * stored.prepared, last);
  const int64_t end = std::min((first + count - 1) * stored.prepared, last) + stored.prepared;
  const int64_t low = std::min(begin / stored.width, (stored.channels + stored.width - 1) / stored.width - 1);
  const int64_t some = (end + stored.width - 1) / stored.width - low;
  return FileRangeOf({stored.offset, 1, stored.block_nbytes, 0}, low, some).nbytes / kPage;
}

int64_t FinestSegment(const Weights& weights) { return weights.blocks ? LargestSegment(weights, weights.blocks) : 0; }

bool SliceToRoom(const Problem& problem, const std::vector<int64_t>& limits, std::vector<Step>* steps) {
  steps->clear();
  for (size_t index = 0; index < problem.layers.size(); ++index) {
    const Layer& layer = problem.layers[index];
    const int64_t slices = layer.weighted() ? SliceCount(layer.weights, limits[index]) : 1;
    if (!slices) return false;
    int64_t first = 0;
    for (int64_t slice = 1; slice <= slices; ++slice) {
      const int64_t end = layer.blocks() * slice / slices;
      steps->push_back({static_cast<int64_t>(index), first, end - first});
      first = end;
    }
  }
  return true;
}

}  // namespace flexcomp::planner

#include "layout.h"

#include <algorithm>

#include "problem.h"

namespace flexcomp::planner {

Layout::Layout(size_t layers, const int64_t* begins, const int64_t* occupied, int64_t top) : gaps_(layers), top_(top) {
  for (size_t layer = 0; layer < layers; ++layer) {
    Gaps& gaps = gaps_[layer];
    for (int64_t index = begins[layer]; index < begins[layer + 1]; ++index) {
      const int64_t address = occupied[2 * index], nbytes = occupied[2 * index + 1];
      const int64_t below = address / kPage;
      if (below > gaps.above) {
        gaps.between.push_back({gaps.above, below});
        gaps.largest = std::max(gaps.largest, below - gaps.above);
      }
      gaps.above = std::max(gaps.above, (address + nbytes + kPage - 1) / kPage);
    }
  }
}

int64_t Layout::Room(size_t layer, int64_t pages) const {
  return std::max(gaps_[layer].largest, pages - gaps_[layer].above) * kPage;
}

void Layout::FreePages(size_t layer, int64_t pages, PageSet* free) const {
  free->Clear();
  for (const PageRange& gap : gaps_[layer].between) free->Append(std::min(gap.first, pages), std::min(gap.end, pages));
  free->Append(gaps_[layer].above, pages);
}

}  // namespace flexcomp::planner

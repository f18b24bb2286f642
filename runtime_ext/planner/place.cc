#include "place.h"

#include <algorithm>
#include <utility>

namespace flexcomp::planner {

int64_t PlaceInOrder(const Records& records, int64_t count, const int64_t* order, int64_t* offsets) {
  std::fill_n(offsets, records.nbytes.size(), -1);
  std::vector<std::pair<int64_t, int64_t>> occupied;  // offset, bytes
  int64_t total = 0;
  for (int64_t turn = 0; turn < count; ++turn) {
    const int64_t index = order[turn], nbytes = records.nbytes[index], align = records.align[index];
    occupied.clear();
    for (int64_t each = records.ends[index]; each < records.ends[index + 1]; ++each) {
      const int64_t other = records.neighbours[each];
      if (offsets[other] >= 0) occupied.emplace_back(offsets[other], records.nbytes[other]);
    }
    std::sort(occupied.begin(), occupied.end());
    int64_t best = -1, smallest = INT64_MAX, end = 0;
    for (const auto& [offset, size] : occupied) {
      const int64_t aligned = (end + align - 1) / align * align;
      if (aligned + nbytes <= offset && offset - end < smallest) {
        best = aligned;
        smallest = offset - end;
      }
      end = std::max(end, offset + size);
    }
    offsets[index] = best < 0 ? (end + align - 1) / align * align : best;
    total = std::max(total, offsets[index] + nbytes);
  }
  return total;
}

}  // namespace flexcomp::planner

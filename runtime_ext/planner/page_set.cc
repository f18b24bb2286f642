#include "page_set.h"

#include <algorithm>

namespace flexcomp::planner {

void PageSet::Append(int64_t first, int64_t end) {
  if (first >= end) return;
  if (!ranges_.empty() && ranges_.back().end == first) {
    ranges_.back().end = end;
  } else {
    ranges_.push_back({first, end});
  }
}

void PageSet::Remove(int64_t first, int64_t end) {
  auto range = std::partition_point(ranges_.begin(), ranges_.end(), [&](const PageRange& one) { return one.end <= first; });
  if (range == ranges_.end() || range->first >= end) return;
  if (range->first < first && end < range->end) {  // inside one range
    const PageRange rest{end, range->end};
    range->end = first;
    ranges_.insert(range + 1, rest);
    return;
  }
  if (range->first < first) (range++)->end = first;
  const auto gone = range;
  while (range != ranges_.end() && range->end <= end) ++range;
  if (range != ranges_.end() && range->first < end) range->first = end;
  ranges_.erase(gone, range);
}

void PageSet::Add(int64_t first, int64_t end) {
  if (first >= end) return;
  auto range = std::partition_point(ranges_.begin(), ranges_.end(), [&](const PageRange& one) { return one.end < first; });
  if (range == ranges_.end() || range->first > end) {
    ranges_.insert(range, {first, end});
    return;
  }
  range->first = std::min(range->first, first);
  auto last = range;
  while (last + 1 != ranges_.end() && (last + 1)->first <= end) ++last;
  range->end = std::max(last->end, end);
  ranges_.erase(range + 1, last + 1);
}

bool PageSet::Contains(int64_t first, int64_t end) const {
  const auto range =
      std::partition_point(ranges_.begin(), ranges_.end(), [&](const PageRange& one) { return one.end < end; });
  return range != ranges_.end() && range->first <= first;
}

void PageSet::Intersection(const PageSet& one, const PageSet& other, int64_t count) {
  ranges_.clear();
  auto range = other.ranges_.begin();
  for (const PageRange& mine : one.ranges_) {
    while (range != other.ranges_.end() && range->end <= mine.first) ++range;
    for (auto each = range; each != other.ranges_.end() && each->first < mine.end; ++each) {
      const int64_t first = std::max(mine.first, each->first), end = std::min(mine.end, each->end);
      if (end - first >= count) ranges_.push_back({first, end});
    }
  }
}

}  // namespace flexcomp::planner

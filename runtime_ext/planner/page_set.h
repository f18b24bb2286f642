// Sets of arena pages as ranges: like the integers of flexcomp/plan/parts/pages.py, for arenas of any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flexcomp::planner {

struct PageRange {
  int64_t first, end;
};

// Ascending; none is empty, none touches the next.
class PageSet {
 public:
  const std::vector<PageRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

  void Clear() { ranges_.clear(); }
  // After all others.
  void Append(int64_t first, int64_t end);
  void Remove(int64_t first, int64_t end);
  void Add(int64_t first, int64_t end);
  bool Contains(int64_t first, int64_t end) const;
  // Becomes the intersection of `one` and `other`, without ranges of fewer than `count` pages.
  void Intersection(const PageSet& one, const PageSet& other, int64_t count);
  void swap(PageSet& other) { ranges_.swap(other.ranges_); }

 private:
  std::vector<PageRange> ranges_;
};

}  // namespace flexcomp::planner

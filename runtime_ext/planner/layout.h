// Places of tensors and scratch, and the free pages between (flexcomp/plan, layout.py).
#pragma once

#include <vector>

#include "page_set.h"

namespace flexcomp::planner {

class Layout {
 public:
  // `occupied` are (address, nbytes) by address, for layer l from begins[l] to begins[l + 1]; `top`, in bytes, is the end of
  // the last.
  Layout(size_t layers, const int64_t* begins, const int64_t* occupied, int64_t top);

  int64_t top() const { return top_; }
  // Bytes of the largest page-aligned gap of a layer, in an arena of `pages` pages.
  int64_t Room(size_t layer, int64_t pages) const;
  // The free pages of a layer, in an arena of `pages` pages.
  void FreePages(size_t layer, int64_t pages, PageSet* free) const;

 private:
  struct Gaps {
    std::vector<PageRange> between;  // tensors and scratch
    int64_t largest = 0;             // gap, in pages
    int64_t above = 0;               // from this page on, nothing touches any page
  };

  std::vector<Gaps> gaps_;  // per layer
  int64_t top_;
};

}  // namespace flexcomp::planner

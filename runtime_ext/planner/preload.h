// Each segment as early as a place is free, the first of them in the inference before (flexcomp/plan, preload.py, ahead.py).
#pragma once

#include <vector>

#include "page_set.h"
#include "pieces.h"

namespace flexcomp::planner {

enum class Chooser : int64_t { kRing, kLowest, kHighest };  // in the order of CHOOSERS

struct Place {
  int64_t after, first;  // steps; page
  bool ahead = false;
};

class Preloading {
 public:
  // `free` holds the free pages of every step, and at its end those between two inferences; places are taken out of it.
  // The first `within` pages are preferred; 0: none are.
  Preloading(std::vector<PageSet>* free, const std::vector<Piece>& pieces, Chooser chooser, int64_t within)
      : free_(*free), pieces_(pieces), chooser_(chooser), within_(within) {}

  // A place for every piece; false if one has none.
  bool Run(std::vector<Place>* places);

 private:
  bool PlaceAll(std::vector<Place>* places);
  bool MoveAhead(std::vector<PageSet>* free, size_t early, std::vector<Place>* places);
  void Prolong(size_t early, std::vector<Place>* places) const;

  // The smallest step from `earliest` to the piece's own from which on a place is free until its end; -1 if there is
  // none. Leaves the ranges in window_ that are free then.
  int64_t EarliestPlace(const std::vector<PageSet>& free, const Piece& piece, int64_t earliest, bool within);
  // The same from `start` backwards, for what must lie in window_ too. Ranges that are too short never grow: they go at
  // once, so that few are left to look at.
  int64_t Backwards(const std::vector<PageSet>& free, int64_t start, int64_t earliest, int64_t count);
  void Begin(const PageSet& free, int64_t count, bool within);
  void Narrow(const PageSet& by, int64_t count);
  int64_t Choose(int64_t count);

  std::vector<PageSet>& free_;
  const std::vector<Piece>& pieces_;
  const Chooser chooser_;
  const int64_t within_;
  int64_t head_ = 0;  // of the ring
  PageSet window_, next_, all_;
};

}  // namespace flexcomp::planner

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

// The pages that are free at all of some steps, in ranges of at least a piece's size: ranges that are too short never grow,
// so they go at once, and few are left to look at.
class Window {
 public:
  // What is free at one step, only of the first `within` pages if that is not 0.
  void Begin(const PageSet& free, int64_t count, int64_t within);
  void Narrow(const PageSet& by, int64_t count);
  // The smallest step from `earliest` to `start` from which on the window is still free; leaves what is. -1 if it is empty.
  int64_t Backwards(const std::vector<PageSet>& free, int64_t start, int64_t earliest, int64_t count);
  // The same for all steps of a piece.
  int64_t EarliestPlace(const std::vector<PageSet>& free, const Piece& piece, int64_t earliest, int64_t within);

  bool empty() const { return now_.empty(); }
  const std::vector<PageRange>& ranges() const { return now_.ranges(); }

 private:
  PageSet now_, next_, all_;
};

class Preloading {
 public:
  // `free` holds the free pages of every step, and at its end those between two inferences; places are taken out of it.
  // The first `within` pages are preferred; 0: none are. `moved` is room for a copy of `free`.
  Preloading(std::vector<PageSet>* free, std::vector<PageSet>* moved, const std::vector<Piece>& pieces, Chooser chooser,
             int64_t within)
      : free_(*free), moved_(*moved), pieces_(pieces), chooser_(chooser), within_(within) {}

  // A place for every piece; false if one has none.
  bool Run(std::vector<Place>* places);

 private:
  bool PlaceAll(std::vector<Place>* places);
  bool MoveAhead(std::vector<PageSet>* free, size_t early, std::vector<Place>* places);
  void Prolong(size_t early, std::vector<Place>* places) const;
  // The first page of a place for `count` pages in window_.
  int64_t Choose(int64_t count);

  std::vector<PageSet>& free_;
  std::vector<PageSet>& moved_;
  const std::vector<Piece>& pieces_;
  const Chooser chooser_;
  const int64_t within_;
  int64_t head_ = 0;  // of the ring
  Window window_;
};

}  // namespace flexcomp::planner

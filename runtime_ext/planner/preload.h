// Each segment as early as a place is free, the first ones in the previous inference (flexcomp/plan, preload.py, ahead.py).
#pragma once

#include <vector>

#include "page_set.h"
#include "pieces.h"

namespace flexcomp::planner {

// In the order of CHOOSERS.
enum class Chooser : int64_t {
  kRing,
  kLowest,
  kHighest
};

struct Place {
  int64_t after, first;  // steps; page
  bool ahead = false;
  int64_t again = -1;  // an earlier piece whose load serves this one, too; -1: a load of its own
};

// The pages that are free at all of some steps, in ranges of at least a piece's size: shorter ranges never grow and are
// dropped at once, so few remain to be searched.
class Window {
 public:
  // The pages free at one step, only among the first `within` pages if not 0.
  void Begin(const PageSet& free, int64_t count, int64_t within);
  void Narrow(const PageSet& by, int64_t count);
  // The smallest step from `earliest` to `start` from which on pages of the window are free; leaves these. -1 if there is none.
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
  // `free` holds the free pages of every step, and last the pages free between two inferences; places are taken out of `free`.
  // The first `within` pages are preferred; 0: none are. `moved` is room for a copy of `free`. With `hold` a piece reuses the
  // pages of an earlier piece with the same weights, where nothing has taken their place since.
  Preloading(std::vector<PageSet>* free, std::vector<PageSet>* moved, const std::vector<Piece>& pieces, Chooser chooser,
             int64_t within, bool hold)
      : free_(*free), moved_(*moved), pieces_(pieces), chooser_(chooser), within_(within), hold_(hold) {}

  // A place for every piece; false if one has none.
  bool Run(std::vector<Place>* places);

 private:
  // Leaves pieces with loads of their own in pieces_, each with the end of the last piece that uses its load.
  bool PlaceAll(std::vector<Place>* places);
  bool MoveAhead(std::vector<PageSet>* free, size_t early, std::vector<Place>* places);
  void Prolong(size_t early, std::vector<Place>* places) const;
  // The first page of a place for `count` pages in window_.
  int64_t Choose(int64_t count);
  bool IsFree(int64_t start, int64_t end, const Place& place, int64_t count) const;
  void Occupy(int64_t start, int64_t end, const Place& place, int64_t count);

  std::vector<PageSet>& free_;
  std::vector<PageSet>& moved_;
  std::vector<Piece> pieces_;
  const Chooser chooser_;
  const int64_t within_;
  const bool hold_;
  std::vector<int64_t> again_;  // per piece that Run was given: as Place::again
  int64_t head_ = 0;  // of the ring
  Window window_;
};

}  // namespace flexcomp::planner

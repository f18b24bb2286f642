// One point of the search: acts 2 to 5 of flexcomp/plan's best.py, and the plan's simulated latency.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "layout.h"
#include "pieces.h"
#include "pin.h"
#include "preload.h"
#include "problem.h"

namespace flexcomp::planner {

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct Choice {
  int64_t arena, core;  // pages
  int64_t segments_at_once;
  Pins pins;
  int64_t joined;  // bytes
  Chooser chooser;
  int64_t within;  // pages
  int64_t stored;  // not 0: as Point.stored
};

// The weights that stay in the arena, per step.
struct Stays {
  std::vector<char> pinned;
  std::vector<int64_t> kept;  // pages of stored weights; 0: none
};

struct Candidate {
  Plan plan;
  int64_t arena = 0;   // bytes
  int64_t effort = 0;  // steps before neighbouring pinned ones were merged
  double least = 0;    // a lower bound in seconds of computing and streaming
  int64_t nbytes = 0;  // streamed
};

enum class Made {
  kPlan,
  kHopeless,
  kUnplaceable
};

// A candidate before anything is placed.
struct Draft {
  std::vector<Step> steps;
  Stays stays;
  std::vector<Piece> pieces, streamed;
  std::vector<size_t> alike;        // by piece: the first with the same weights, whose place it shares
  std::vector<size_t> streamed_at;  // pieces
  int64_t top = 0;                  // page from which on weights stay
  int64_t effort = 0;               // steps before neighbouring pinned ones were merged
  double least = 0;                 // a lower bound in seconds of computing and streaming
  int64_t nbytes = 0;               // streamed at least
};

// Makes candidates of a problem. Points that differ only in how loads are joined and placed share their slices and pins.
class Making {
 public:
  explicit Making(const Problem& problem) : problem_(problem) {}

  // `number` identifies the layout. Hopeless: a lower bound exceeds `limit` seconds, and nothing is placed. Unplaceable:
  // something finds no place.
  Made Make(int64_t number, const Layout& layout, const Choice& choice, double limit, Candidate* candidate);

  // The two halves of it, for any limit: acts 2 to 4, false if a block finds no room, and the places of a draft, false without one.
  bool Begin(int64_t number, const Layout& layout, const Choice& choice, Draft* draft);
  bool Finish(const Layout& layout, const Choice& choice, const Draft& draft, Candidate* candidate);

 private:
  // Acts 2 and 3, and the pins.
  struct Sliced {
    std::vector<int64_t> limits;  // bytes of a segment, per layer
    std::vector<Step> steps;
    Stays stays;
    int64_t effort = 0;
    bool fits = false;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, Pins, int64_t, int64_t>;

  const Sliced& SlicedFor(int64_t number, const Layout& layout, const Choice& choice);

  const Problem& problem_;
  std::map<Key, Sliced> sliced_;
  std::vector<PageSet> free_, moved_;  // room that is used again
};

}  // namespace flexcomp::planner

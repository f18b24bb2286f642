// The search of flexcomp/plan/search/descent.py, choice by choice.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "candidate.h"
#include "layout.h"
#include "problem.h"

namespace flexcomp::planner {

// As ctypes.Structure of flexcomp/plan/native.py, field by field, and as the NamedTuple `Choice` of descent.py: a point of the search
// before it is rounded to pages.
struct Coordinates {
  int64_t layout;
  double share;
  int64_t segments_at_once;
  int64_t pins;
  int64_t joined;  // in bytes that the storage reads in the fixed time of a load
  int64_t chooser;
  int64_t within;
  int64_t stored;

  auto operator<=>(const Coordinates&) const = default;
};

// Of a plan: seconds to the microsecond, bytes to load, bytes of memory. Less is better.
struct Cost {
  double latency = std::numeric_limits<double>::infinity();
  int64_t nbytes = 0, arena = 0;

  auto operator<=>(const Cost&) const = default;
};

// As ctypes.Structure of flexcomp/plan/native.py, field by field.
struct SearchRules {
  int64_t arena;        // pages
  double effort;        // steps
  double step_effort;   // of a step
  double limit;         // seconds; slower candidates are of no interest
  double enough;        // seconds; faster ones neither
  double no_slower;     // times the latency that fewer bytes are worth
  double joined_s;      // seconds that the storage needs for a load besides its bytes
  int64_t keeps;        // not 0: as Problem.keeps
  int64_t pins, choosers;  // how many there are
  int64_t starts, rounds;
  Coordinates usual;  // all but layout, share and window
};

// A plan of the search waits for itself, which no correct one does.
struct Stuck {};

// Values of the coordinates that have a few.
struct SearchLines {
  std::vector<int64_t> layouts;  // numbers of the problem's layouts, by coordinate
  std::vector<int64_t> least;    // pages of each
  std::vector<int64_t> windows, segments, grid_segments, joined;
  std::vector<double> shares;
};

class BudgetSearch {
 public:
  // `problem`, `layouts` and `making` outlive it.
  BudgetSearch(const Problem& problem, const std::vector<Layout>& layouts, Making* making, const SearchRules& rules, SearchLines lines)
      : problem_(problem), layouts_(layouts), making_(*making), rules_(rules), lines_(std::move(lines)), limit_(rules.limit) {}

  Coordinates Gridded(const std::vector<Coordinates>& starts, int64_t pin_more);
  Coordinates Descended(const Coordinates& start);
  Coordinates Begin(const std::vector<Coordinates>& choices);
  Cost CostOf(const Coordinates& choice) const;
  double spent() const { return spent_; }

 private:
  using Point = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
  struct Seen {
    Coordinates choice;
    Cost cost;
  };

  Coordinates Winner(const std::vector<Coordinates>& choices);
  Cost Try(const Coordinates& choice);
  const Cost& CostOfDraft(int64_t layout, const Choice& point);
  Choice PointOf(const Coordinates& choice) const;
  void Go(Coordinates at);
  Coordinates Frugal(int64_t pin_more, double most);
  std::vector<double> SharesNear(double share) const;

  const Problem& problem_;
  const std::vector<Layout>& layouts_;
  Making& making_;
  const SearchRules rules_;
  const SearchLines lines_;
  double limit_, spent_ = 0.0;
  std::vector<Seen> seen_;               // in the order of trying
  std::map<Coordinates, size_t> number_;  // in `seen_`
  std::map<Point, Cost> made_;           // different choices may give the same point
  std::map<std::vector<int64_t>, Cost> placed_;  // different points may give the same draft; not rounded
  Draft draft_;
  Candidate candidate_;
};

}  // namespace flexcomp::planner

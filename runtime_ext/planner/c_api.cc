// The functions that flexcomp/plan/native.py calls. Handles belong to the caller; rows are arrays of int64 in the order of the
// structs' fields. Functions return one of the codes below.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "candidate.h"
#include "cuts.h"
#include "descent.h"
#include "mix.h"
#include "place.h"
#include "published.h"
#include "simulate.h"
#include "slicing.h"

namespace flexcomp::planner {
namespace {

enum : int32_t {
  kFine,
  kUnplaceable,
  kStuck,
  kOutOfMemory
};

struct Result {
  double latency;
  int64_t nbytes, arena, effort;  // bytes read in the steady state, bytes of memory, steps
  int64_t steps, segments, again;  // rows
};

// A problem with its layouts, and the last plan.
struct Search {
  Problem problem;
  std::vector<Layout> layouts;
  Making making{problem};
  Candidate candidate;
};

template <typename Function>
int32_t Guarded(Function function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (const Stuck&) {
    return kStuck;
  }
}

template <typename Row>
void Copy(const std::vector<Row>& from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(Row));
}

}  // namespace
}  // namespace flexcomp::planner

using namespace flexcomp::planner;

#define FLEXCOMP_PLANNER extern "C" __attribute__((visibility("default")))

// One row per layer: `times` (seconds, slice_s, load_cost, prepare_s), `weights` the fields of Weights and of Stored.
FLEXCOMP_PLANNER int32_t FlexcompPlannerNew(int64_t layers, const double* times, const int64_t* weights, const Storage* storage,
                                            Search** search) {
  return Guarded([&]() -> int32_t {
    auto made = std::make_unique<Search>();
    made->problem.storage = *storage;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const double* time = times + 4 * layer;
      const int64_t* row = weights + 9 * layer;
      const Weights own{row[0], row[1], row[2], row[3]};
      const Stored stored{row[4], row[5], row[6], row[7], row[8]};
      size_t twin = 0;
      while (twin < made->problem.layers.size() && !(own.blocks && made->problem.layers[twin].weights == own)) ++twin;
      made->problem.shares |= static_cast<int64_t>(twin) < layer;
      made->problem.layers.push_back({time[0], time[1], time[2], time[3], own, stored, FinestSegment(own), twin});
    }
    *search = made.release();
    return kFine;
  });
}

FLEXCOMP_PLANNER void FlexcompPlannerFree(Search* search) { delete search; }

// As the constructor of Layout.
FLEXCOMP_PLANNER int32_t FlexcompPlannerAddLayout(Search* search, const int64_t* begins, const int64_t* occupied, int64_t top) {
  return Guarded([&]() -> int32_t {
    search->layouts.emplace_back(search->problem.layers.size(), begins, occupied, top);
    return kFine;
  });
}

// The plan of one point of the search, and its costs; if a lower bound exceeds `limit` seconds, only the bound.
FLEXCOMP_PLANNER int32_t FlexcompPlannerTry(Search* search, int64_t layout, const Choice* choice, double limit,
                                            Result* result) {
  return Guarded([&]() -> int32_t {
    Candidate& made = search->candidate;
    const Made how = search->making.Make(layout, search->layouts[layout], *choice, limit, &made);
    if (how == Made::kUnplaceable) return kUnplaceable;
    if (how == Made::kHopeless) {
      *result = {made.least, made.nbytes, 0, made.effort, 0, 0, 0};
      return kFine;
    }
    double latency = 0;
    Waits waits;
    if (!Simulate(search->problem, made.plan, &latency, &waits)) return kStuck;
    *result = {latency, made.nbytes, made.arena, made.effort,
               static_cast<int64_t>(made.plan.steps.size()), static_cast<int64_t>(made.plan.segments.size()),
               static_cast<int64_t>(made.plan.again.size())};
    return kFine;
  });
}

// A search for plans of one budget. `lines` are the values of SearchLines: the numbers of layouts and their pages, the windows, the
// segments at once, those of the grid, and the joined segments, with their `counts`; `shares` are those of the core.
FLEXCOMP_PLANNER int32_t FlexcompPlannerSearchNew(Search* search, const SearchRules* rules, const int64_t* counts,
                                                  const int64_t* lines, int64_t shares, const double* share, BudgetSearch** of_budget) {
  return Guarded([&]() -> int32_t {
    SearchLines made;
    made.shares.assign(share, share + shares);
    for (auto* line : {&made.layouts, &made.least, &made.windows, &made.segments, &made.grid_segments, &made.joined}) {
      line->assign(lines, lines + *counts);
      lines += *counts++;
    }
    *of_budget =
        std::make_unique<BudgetSearch>(search->problem, search->layouts, &search->making, *rules, std::move(made)).release();
    return kFine;
  });
}

FLEXCOMP_PLANNER void FlexcompPlannerSearchFree(BudgetSearch* search) { delete search; }

// The best of `choices`, as BudgetSearch::Begin; what it costs, and what was spent so far.
FLEXCOMP_PLANNER int32_t FlexcompPlannerBegin(BudgetSearch* search, int64_t count, const Coordinates* choices, Coordinates* found,
                                              Cost* cost, double* spent) {
  return Guarded([&]() -> int32_t {
    *found = search->Begin({choices, choices + count});
    *cost = search->CostOf(*found);
    *spent = search->spent();
    return kFine;
  });
}

// As BudgetSearch::Gridded; without `pin_more`, below 0, as BudgetSearch::Descended from the only start.
FLEXCOMP_PLANNER int32_t FlexcompPlannerDescend(BudgetSearch* search, int64_t count, const Coordinates* starts, int64_t pin_more,
                                                Coordinates* found, double* spent) {
  return Guarded([&]() -> int32_t {
    *found = pin_more < 0 ? search->Descended(*starts) : search->Gridded({starts, starts + count}, pin_more);
    *spent = search->spent();
    return kFine;
  });
}

// The rows of the plan that was made last.
FLEXCOMP_PLANNER void FlexcompPlannerPlan(const Search* search, int64_t* steps, int64_t* segments, int64_t* need,
                                          int64_t* again) {
  Copy(search->candidate.plan.steps, steps);
  Copy(search->candidate.plan.segments, segments);
  Copy(search->candidate.plan.need, need);
  Copy(search->candidate.plan.again, again);
}

// The latency of any plan, of rows of steps and of segments, in an arena of so many bytes.
FLEXCOMP_PLANNER int32_t FlexcompPlannerLatency(const Search* search, int64_t steps, const int64_t* step_rows, int64_t segments,
                                                const int64_t* segment_rows, const int64_t* need, int64_t arena,
                                                double* latency, Waits* waits) {
  return Guarded([&]() -> int32_t {
    Plan plan;
    plan.steps.resize(steps);
    plan.segments.resize(segments);
    plan.need.assign(need, need + steps);
    plan.arena = arena;
    if (steps) std::memcpy(plan.steps.data(), step_rows, steps * sizeof(Step));
    if (segments) std::memcpy(plan.segments.data(), segment_rows, segments * sizeof(Segment));
    return Simulate(search->problem, plan, latency, waits) ? kFine : kStuck;
  });
}

// As CutValues.
FLEXCOMP_PLANNER void FlexcompPlannerCuts(int64_t layers, const double* seconds_upto, const double* nbytes_upto,
                                          const double* held, const CutRates* rates, double* values) {
  CutValues(layers, seconds_upto, nbytes_upto, held, *rates, values);
}

// The largest value of CutValues in `budget` bytes. `live` are the bytes of buffers before each layer; a byte of memory holds as much
// as `dearest` bytes of weights. The budget of `rates` is not read.
FLEXCOMP_PLANNER int32_t FlexcompPlannerLargestCut(int64_t layers, const double* seconds_upto, const double* nbytes_upto,
                                                   const double* live, double dearest, double budget, const CutRates* rates,
                                                   double* largest) {
  return Guarded([&]() -> int32_t {
    CutRates own = *rates;
    own.budget = budget * dearest;
    std::vector<double> held(layers), row(layers + 1);
    for (int64_t cut = 0; cut < layers; ++cut) held[cut] = dearest * std::max(0.0, budget - live[cut]);
    *largest = -std::numeric_limits<double>::infinity();
    for (int64_t cut = 0; cut < layers; ++cut) {
      *largest = std::max(*largest, CutRow(layers, cut, seconds_upto, nbytes_upto, held.data(), own, row.data()));
    }
    return kFine;
  });
}

// As Mix: rows of seconds, of bytes, and of flags of allowed options, one per layer.
FLEXCOMP_PLANNER int32_t FlexcompPlannerMix(int64_t layers, int64_t width, const double* seconds, const double* nbytes,
                                            const uint8_t* allowed, const double* held, const CutRates* rates,
                                            const Descent* descent, int64_t softnesses, const Softness* softness,
                                            int64_t* picks) {
  return Guarded([&]() -> int32_t {
    Mix({layers, width, seconds, nbytes, allowed}, held, *rates, *descent, softnesses, softness, picks);
    return kFine;
  });
}

// `rows` are (nbytes, align) of records, `ends` and `neighbours` as in Records.
FLEXCOMP_PLANNER int32_t FlexcompPlannerRecordsNew(int64_t count, const int64_t* rows, const int64_t* ends,
                                                   const int64_t* neighbours, Records** records) {
  return Guarded([&]() -> int32_t {
    auto made = std::make_unique<Records>();
    for (int64_t record = 0; record < count; ++record) {
      made->nbytes.push_back(rows[2 * record]);
      made->align.push_back(rows[2 * record + 1]);
    }
    made->ends.assign(ends, ends + count + 1);
    made->neighbours.assign(neighbours, neighbours + ends[count]);
    *records = made.release();
    return kFine;
  });
}

FLEXCOMP_PLANNER void FlexcompPlannerRecordsFree(Records* records) { delete records; }

// As PlaceInOrder.
FLEXCOMP_PLANNER int32_t FlexcompPlannerPlace(const Records* records, int64_t count, const int64_t* order, int64_t* offsets,
                                              int64_t* total) {
  return Guarded([&]() -> int32_t {
    *total = PlaceInOrder(*records, count, order, offsets);
    return kFine;
  });
}

// As FlexNn, in an arena of `pages` pages with the tensors of a layout; `rows` are the layers of all steps, then their pages of
// weights, then of scratch; `places` their after, first pages, and first pages of scratch. `failed` is the step without a place.
FLEXCOMP_PLANNER int32_t FlexcompPlannerFlexNn(int64_t layers, const int64_t* begins, const int64_t* occupied, int64_t pages,
                                               int64_t steps, const int64_t* rows, int64_t* places, int64_t* failed) {
  return Guarded([&]() -> int32_t {
    const Layout layout(layers, begins, occupied, 0);
    std::vector<PageSet> free(steps);
    for (int64_t step = 0; step < steps; ++step) layout.FreePages(rows[step], pages, &free[step]);
    *failed = FlexNn(&free, rows + steps, rows + 2 * steps, places, places + steps, places + 2 * steps);
    return *failed < 0 ? kFine : kUnplaceable;
  });
}

// As Partition: `starts` has room for one per layer, `count` of them are written.
FLEXCOMP_PLANNER int32_t FlexcompPlannerPartition(int64_t layers, const int64_t* nbytes_upto, const double* seconds_upto,
                                                  double single_s, double bandwidth, int64_t room, int64_t* starts,
                                                  int64_t* count) {
  return Guarded([&]() -> int32_t {
    const std::vector<int64_t> found = Partition(layers, nbytes_upto, seconds_upto, single_s, bandwidth, room);
    *count = static_cast<int64_t>(found.size());
    Copy(found, starts);
    return found.empty() ? kUnplaceable : kFine;
  });
}

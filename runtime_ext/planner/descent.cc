#include "descent.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "simulate.h"

namespace flexcomp::planner {
namespace {

// As Python rounds: the nearest decimal of the exact number.
double ToMicroseconds(double seconds) {
  char text[400];
  const char* end = std::to_chars(std::begin(text), std::end(text), seconds, std::chars_format::fixed, 6).ptr;
  std::from_chars(text, end, seconds);
  return seconds;
}

}  // namespace

Coordinates BudgetSearch::Gridded(const std::vector<Coordinates>& starts, int64_t pin_more) {
  std::vector<Coordinates> choices;
  for (const int64_t window : lines_.windows) {
    for (size_t layout = 0; layout < lines_.layouts.size(); ++layout) {
      for (const double share : lines_.shares) {
        choices.push_back(rules_.usual);
        choices.back().layout = static_cast<int64_t>(layout);
        choices.back().share = share;
        choices.back().within = window;
      }
    }
  }
  const Coordinates first = Begin(choices);
  std::vector<Coordinates> grid;
  for (const double share : lines_.shares) {
    for (const int64_t count : lines_.grid_segments) {
      grid.push_back(first);
      grid.back().share = share;
      grid.back().segments_at_once = count;
    }
  }
  if (CostOf(first).latency > rules_.enough && spent_ <= rules_.effort) {
    Winner(grid);
    std::vector<std::pair<Cost, size_t>> order;
    for (size_t at = 0; at < grid.size(); ++at) order.push_back({CostOf(grid[at]), at});
    std::sort(order.begin(), order.end());
    for (size_t at = 0; at < order.size() && at < static_cast<size_t>(rules_.starts); ++at) {
      if (spent_ <= rules_.effort) Go(grid[order[at].second]);
    }
  }
  if (!starts.empty()) {
    spent_ = std::min(spent_, rules_.effort);  // even with no effort left
    Go(Winner(starts));
  }
  return Frugal(pin_more, std::numeric_limits<double>::infinity());
}

Coordinates BudgetSearch::Descended(const Coordinates& start) {
  Go(start);
  return Frugal(0, CostOf(start).latency);
}

Coordinates BudgetSearch::Begin(const std::vector<Coordinates>& choices) {
  Coordinates first = Winner(choices);
  if (CostOf(first) == Cost{}) {  // joined segments find no place
    first.joined = 0;
    first = Winner({first});
  }
  // At any effort: where two slices in flight mean thousands of steps, one may be better.
  if (CostOf(first).latency > rules_.enough) {
    Coordinates one = first;
    one.segments_at_once = 1;
    first = Winner({one, first});
  }
  return first;
}

Cost BudgetSearch::CostOf(const Coordinates& choice) const {
  const auto found = number_.find(choice);
  return found == number_.end() ? Cost{} : seen_[found->second].cost;
}

// The best of `choices`; stops early once one is good enough or no effort is left.
Coordinates BudgetSearch::Winner(const std::vector<Coordinates>& choices) {
  const Coordinates* best = nullptr;
  Cost least;
  for (const Coordinates& choice : choices) {
    const auto found = number_.find(choice);
    if (found == number_.end() && best && spent_ > rules_.effort) break;
    const Cost cost = found == number_.end() ? Try(choice) : seen_[found->second].cost;
    if (!best || cost < least) {
      best = &choice;
      least = cost;
    }
    if (cost.latency <= rules_.enough) break;
  }
  return *best;
}

Cost BudgetSearch::Try(const Coordinates& choice) {
  const Choice point = PointOf(choice);
  const Point key{choice.layout, point.core, choice.segments_at_once, static_cast<int64_t>(point.pins),
                  choice.joined, choice.chooser, choice.within, point.stored};
  auto made = made_.find(key);
  if (made == made_.end()) {
    const int64_t layout = lines_.layouts[choice.layout];
    Cost cost;
    if (making_.Begin(layout, layouts_[layout], point, &draft_)) {
      cost = draft_.least > limit_ ? Cost{draft_.least, draft_.nbytes, 0} : CostOfDraft(layout, point);
      if (cost != Cost{}) {
        cost.latency = ToMicroseconds(cost.latency);
        spent_ += static_cast<double>(draft_.effort) * rules_.step_effort;
      }
    }
    limit_ = std::min(limit_, std::max(rules_.enough, rules_.no_slower * cost.latency) + 2e-6);  // costs are to the microsecond
    made = made_.emplace(key, cost).first;
  }
  number_.emplace(choice, seen_.size());
  seen_.push_back({choice, made->second});
  return made->second;
}

// Of the draft's plan, in seconds that are not rounded; that of an impossible one if something finds no place.
const Cost& BudgetSearch::CostOfDraft(int64_t layout, const Choice& point) {
  const Draft& draft = draft_;
  std::vector<int64_t> key{layout, static_cast<int64_t>(point.chooser), point.within};
  key.reserve(3 + 5 * draft.steps.size() + 5 * draft.pieces.size());
  for (size_t at = 0; at < draft.steps.size(); ++at) {
    const Step& step = draft.steps[at];
    key.insert(key.end(), {step.layer, step.first, step.count, draft.stays.pinned[at], draft.stays.kept[at]});
  }
  for (const Piece& piece : draft.pieces) key.insert(key.end(), {piece.step, piece.end});
  const auto [found, is_new] = placed_.try_emplace(std::move(key));
  Cost& cost = found->second;
  if (!is_new || !making_.Finish(layouts_[layout], point, draft, &candidate_)) return cost;
  Waits waits;
  if (!Simulate(problem_, candidate_.plan, &cost.latency, &waits)) throw Stuck();
  cost.nbytes = candidate_.nbytes;
  cost.arena = candidate_.arena;
  return cost;
}

Choice BudgetSearch::PointOf(const Coordinates& choice) const {
  const int64_t least = lines_.least[choice.layout];
  const int64_t core = least + static_cast<int64_t>(static_cast<double>(rules_.arena - least) * choice.share);
  const bool whole = core >= rules_.arena;  // nothing is pinned
  const double joined = static_cast<double>(choice.joined) * rules_.joined_s * problem_.storage.bandwidth;
  return {rules_.arena,
          core,
          choice.segments_at_once,
          static_cast<Pins>(whole ? 0 : choice.pins),
          static_cast<int64_t>(joined),
          static_cast<Chooser>(choice.chooser),
          choice.within,
          choice.stored && !whole};
}

// For each coordinate the choices that differ in it, the likeliest first.
void BudgetSearch::Go(Coordinates at) {
  const auto along = [&](auto Coordinates::* coordinate, const auto& values) {
    std::vector<Coordinates> line(values.size(), at);
    for (size_t number = 0; number < line.size(); ++number) line[number].*coordinate = values[number];
    at = Winner(line);
  };
  const auto upto = [](int64_t count) {
    std::vector<int64_t> numbers;
    for (int64_t number = 0; number < count; ++number) numbers.push_back(number);
    return numbers;
  };
  for (int64_t round = 0; round < rules_.rounds; ++round) {
    const Coordinates before = at;
    along(&Coordinates::joined, lines_.joined);
    along(&Coordinates::segments_at_once, lines_.segments);
    along(&Coordinates::chooser, upto(rules_.choosers));
    along(&Coordinates::pins, upto(rules_.pins));
    if (rules_.keeps) along(&Coordinates::stored, std::vector<int64_t>{1, 0});
    along(&Coordinates::within, lines_.windows);
    along(&Coordinates::layout, upto(static_cast<int64_t>(lines_.layouts.size())));
    along(&Coordinates::share, SharesNear(at.share));
    if (at == before || CostOf(at).latency <= rules_.enough || spent_ > rules_.effort) return;
  }
}

// The share, and those halfway to its neighbours.
std::vector<double> BudgetSearch::SharesNear(double share) const {
  std::vector<double> shares = lines_.shares;
  for (const Seen& one : seen_) shares.push_back(one.choice.share);
  std::sort(shares.begin(), shares.end());
  shares.erase(std::unique(shares.begin(), shares.end()), shares.end());
  const auto at = std::lower_bound(shares.begin(), shares.end(), share) - shares.begin();
  const auto begin = std::max<int64_t>(0, at - 1), end = std::min<int64_t>(static_cast<int64_t>(shares.size()), at + 2);
  std::vector<double> near{share};
  for (int64_t number = begin; number + 1 < end; ++number) near.push_back((shares[number] + shares[number + 1]) / 2);
  return near;
}

// The choice that loads least of the fastest: loads take memory bandwidth and so disturb computing.
Coordinates BudgetSearch::Frugal(int64_t pin_more, double most) {
  const auto cheaper = [](const Seen& one, const Seen& other) { return one.cost < other.cost; };
  const Seen best = *std::min_element(seen_.begin(), seen_.end(), cheaper);
  const double allowed = std::min(most, std::max(rules_.enough, rules_.no_slower * best.cost.latency));
  const double searched = spent_;
  double low = 0.0, high = best.choice.share;
  for (int64_t again = 0; again < pin_more; ++again) {
    spent_ = std::min(spent_, rules_.effort);  // even with no effort left
    Coordinates choice = best.choice;
    choice.share = (low + high) / 2;
    bool fits = false;
    for (choice.pins = 0; choice.pins < rules_.pins; ++choice.pins) {
      Winner({choice});
      fits |= CostOf(choice).latency <= allowed;
    }
    (fits ? high : low) = choice.share;
  }
  spent_ = searched;
  const Seen* found = nullptr;
  for (const Seen& one : seen_) {
    if (one.cost.latency > allowed) continue;
    if (!found || std::tie(one.cost.nbytes, one.cost) < std::tie(found->cost.nbytes, found->cost)) found = &one;
  }
  return found->choice;
}

}  // namespace flexcomp::planner

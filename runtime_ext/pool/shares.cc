// Exact shares, in three steps that each leave the next one less to do:
//
// 1. A price per byte takes the budget's place: then every lane, and in it every model, chooses alone. At the best price
//    that gives a bound from below for the cost, and a first answer.
// 2. The working bytes of a lane are one of a few sizes. Sizes at which the bound exceeds the answer are left out; for the
//    others the price is found again, with these working bytes.
// 3. Models are added one after the other. A partial choice is dropped where another one needs no more kept bytes and costs
//    no more, or where its bound exceeds the answer.
#include "pool/shares.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "base/error.h"

namespace flexcomp {
namespace {

constexpr size_t kMostPoints = size_t{1} << 20;     // at once: 24 MiB
constexpr size_t kFewPoints = 512;
constexpr double kRounding = 1e-12;

struct Choice {
  uint64_t working, kept;
  double cost;
  uint32_t rung;
};

struct Lane {
  std::vector<uint32_t> models;
  std::vector<uint64_t> sizes;  // that its working range may have, ascending
};

using Ladder = std::vector<Choice>;
using Rungs = std::vector<uint32_t>;

struct Answer {
  Rungs rungs;  // empty: none yet
  double cost = std::numeric_limits<double>::infinity();
  uint64_t nbytes = 0;
};

// Without choices that need no less and cost no less than another.
Ladder Undominated(const ShareModel& model) {
  Ladder all, best;
  for (uint32_t i = 0; i < model.rungs.size(); ++i) {
    const ShareRung& rung = model.rungs[i];
    all.push_back({rung.working, rung.kept, model.weight * rung.seconds, i});
  }
  const auto key = [](const Choice& c) { return std::tuple(c.working, c.kept, c.cost, c.rung); };
  std::ranges::sort(all, {}, key);
  for (const Choice& one : all)  // a dominating choice comes first
    if (std::ranges::none_of(best, [&](const Choice& other) { return other.kept <= one.kept && other.cost <= one.cost; }))
      best.push_back(one);
  return best;
}

// The weights of one unit of cost and one byte.
struct Prices {
  double cost, byte;
};

// The sum of the choices at some prices; among equal sums the second value decides.
struct Value {
  double first = 0, second = 0;
  auto operator<=>(const Value&) const = default;
  Value& operator+=(const Value& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};

Value Priced(const Prices& prices, double cost, uint64_t nbytes) {
  const double bytes = static_cast<double>(nbytes);
  return {prices.cost * cost + prices.byte * bytes, prices.cost > 0 ? bytes : cost};
}

struct Relaxed {
  std::vector<const Choice*> choices;
  double cost = 0;
  uint64_t nbytes = 0;  // with the chosen working sizes, which may exceed the needs of the choices
};

struct Bound {
  double value;  // no answer of these sizes costs less
  double price;  // per byte, at which that was found
};

class Search {
 public:
  Search(std::span<const ShareModel> models, uint64_t budget) : models_(models), budget_(budget) {
    std::vector<std::optional<size_t>> known(models.size());
    for (uint32_t i = 0; i < models.size(); ++i) {
      ladders_.push_back(Undominated(models[i]));
      auto& lane = known[models[i].lane];
      if (!lane) {
        lane = lanes_.size();
        lanes_.emplace_back();
      }
      lane_of_.push_back(*lane);
      lanes_[*lane].models.push_back(i);
    }
    for (Lane& lane : lanes_) lane.sizes = Sizes(lane);
  }

  Shares Run() {
    Shares shares;
    shares.least = Relax(lanes_, {0, 1}).nbytes;
    if (shares.least <= budget_) {
      if (const auto bound = Tighten(lanes_)) TrySizes(*bound);
      shares.rungs = best_.rungs;
      shares.nbytes = best_.nbytes;
      shares.cost = best_.cost;
    }
    shares.points = looked_at_;
    return shares;
  }

 private:
  std::vector<uint64_t> Sizes(const Lane& lane) const {
    uint64_t least = 0;  // each model's choices ascend
    std::vector<uint64_t> sizes;
    for (const uint32_t model : lane.models) {
      least = std::max(least, ladders_[model].front().working);
      for (const Choice& choice : ladders_[model]) sizes.push_back(choice.working);
    }
    std::erase_if(sizes, [least](uint64_t size) { return size < least; });
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());  // clang 14 cannot take the result of std::ranges::unique
    return sizes;
  }

  const Choice& Cheapest(uint32_t model, uint64_t size, const Prices& prices) const {
    const Choice* cheapest = nullptr;
    Value least;
    for (const Choice& choice : ladders_[model]) {
      if (choice.working > size) break;
      const Value value = Priced(prices, choice.cost, choice.kept);
      if (!cheapest || value < least) std::tie(cheapest, least) = std::tuple(&choice, value);
    }
    return *cheapest;
  }

  // A lane at these prices, with a working range of `size` bytes.
  Value LaneValue(const Lane& lane, uint64_t size, const Prices& prices) const {
    Value sum = Priced(prices, 0, size);
    for (const uint32_t model : lane.models) {
      const Choice& choice = Cheapest(model, size, prices);
      sum += Priced(prices, choice.cost, choice.kept);
    }
    return sum;
  }

  // The cheapest choices at these prices, without a budget.
  Relaxed Relax(const std::vector<Lane>& lanes, const Prices& prices) const {
    Relaxed relaxed{std::vector<const Choice*>(models_.size())};
    for (const Lane& lane : lanes) {
      const uint64_t size =
          *std::ranges::min_element(lane.sizes, {}, [&](uint64_t one) { return LaneValue(lane, one, prices); });
      relaxed.nbytes += size;
      for (const uint32_t model : lane.models) {
        const Choice& choice = Cheapest(model, size, prices);
        relaxed.choices[model] = &choice;
        relaxed.cost += choice.cost;
        relaxed.nbytes += choice.kept;
      }
    }
    return relaxed;
  }

  // The highest bound that a price per byte gives. None: no choice is better than the answer so far, or nothing fits.
  std::optional<Bound> Tighten(const std::vector<Lane>& lanes) {
    Relaxed dear = Relax(lanes, {1, 0}), cheap = Relax(lanes, {0, 1});
    if (dear.nbytes <= budget_) {
      Offer(dear.choices);
      return std::nullopt;
    }
    if (cheap.nbytes > budget_) return std::nullopt;
    const double budget = static_cast<double>(budget_);
    double price = 0, value = dear.cost;
    for (;;) {  // each time another corner of the lower hull of cost over bytes
      Offer(cheap.choices);
      const double between = std::max(0.0, cheap.cost - dear.cost) / static_cast<double>(dear.nbytes - cheap.nbytes);
      const Relaxed at = Relax(lanes, {1, between});
      const double found = at.cost + between * (static_cast<double>(at.nbytes) - budget);
      const double line = cheap.cost + between * (static_cast<double>(cheap.nbytes) - budget);
      if (found > value) std::tie(price, value) = std::tuple(between, found);
      if (found >= line - Rounding(between) || at.nbytes == dear.nbytes || at.nbytes == cheap.nbytes) return Bound{value, price};
      (at.nbytes <= budget_ ? cheap : dear) = at;
    }
  }

  // All sizes that the lanes may have together, those with the lowest bounds first.
  void TrySizes(const Bound& bound) {
    std::vector<std::vector<std::pair<double, uint64_t>>> above;  // of each lane, by how much a size raises the bound
    for (const Lane& lane : lanes_) {
      auto& sizes = above.emplace_back();
      for (const uint64_t size : lane.sizes) sizes.emplace_back(LaneValue(lane, size, {1, bound.price}).first, size);
      std::ranges::sort(sizes);
      for (const double least = sizes.front().first; auto& [value, size] : sizes) value -= least;
    }
    std::vector<Lane> chosen = lanes_;
    const auto from = [&](const auto& self, size_t lane, double value) -> void {
      if (lane == chosen.size()) return TryChoices(chosen);
      for (const auto& [more, size] : above[lane]) {
        if (Hopeless({value + more, bound.price})) return;
        chosen[lane].sizes = {size};
        self(self, lane + 1, value + more);
      }
    };
    from(from, 0, bound.value);
  }

  struct Point {
    uint64_t kept;
    double cost;
    uint32_t before;  // index of the point that this one extends
    uint32_t choice;  // of its model
  };

  // Working ranges of given sizes, and known facts of the models of each.
  struct Fixed {
    uint64_t left;                 // bytes of the budget, for kept bytes
    double price;                  // per byte
    std::vector<uint64_t> sizes;   // of each model's lane
    std::vector<uint64_t> kept;    // at least, by the models from this one on
    std::vector<double> relaxed;   // at least, for the models from this one on, cost and bytes at their price
  };

  // The best answer with working ranges of given sizes, unless a better one is known.
  void TryChoices(const std::vector<Lane>& lanes) {
    const auto bound = Tighten(lanes);
    if (!bound || Hopeless(*bound)) return;
    const Prices prices{1, bound->price};
    const size_t count = models_.size();
    Fixed fixed{budget_, bound->price, std::vector<uint64_t>(count), std::vector<uint64_t>(count + 1), std::vector<double>(count + 1)};
    for (const Lane& lane : lanes) {
      fixed.left -= lane.sizes.front();
      for (const uint32_t model : lane.models) fixed.sizes[model] = lane.sizes.front();
    }
    for (uint32_t model = count; model-- > 0;) {
      const Choice& cheapest = Cheapest(model, fixed.sizes[model], prices);
      fixed.relaxed[model] = fixed.relaxed[model + 1] + Priced(prices, cheapest.cost, cheapest.kept).first;
      fixed.kept[model] = fixed.kept[model + 1] + Cheapest(model, fixed.sizes[model], {0, 1}).kept;
    }
    // A good answer, soon found, saves much of finding the best.
    if (!AddModels(fixed, kFewPoints)) AddModels(fixed, kMostPoints);
  }

  // Tries all choices with up to `most` points after each model. Returns whether there were no more.
  bool AddModels(const Fixed& fixed, size_t most) {
    bool all = true;
    points_.assign(1, {0, 0, 0, 0});
    size_t begin = 0;
    for (uint32_t model = 0; model < models_.size(); ++model) {
      const size_t end = points_.size();
      next_.clear();
      for (uint32_t i = 0; i < ladders_[model].size() && ladders_[model][i].working <= fixed.sizes[model]; ++i) {
        AddChoice(fixed, model, i, begin, end);
        MergeAdded();
      }
      if (next_.empty()) return all;
      if (next_.size() > most) {
        Thin(fixed, most);
        all = false;
      }
      points_.insert(points_.end(), next_.begin(), next_.end());
      begin = end;
    }
    OfferEnding(points_.size() - 1);  // the last one costs least
    return all;
  }

  // Makes `added_` of the points from `begin` to `end` and a choice of the model.
  void AddChoice(const Fixed& fixed, uint32_t model, uint32_t index, size_t begin, size_t end) {
    const Choice& choice = ladders_[model][index];
    const double behind = fixed.relaxed[model + 1] - fixed.price * static_cast<double>(fixed.left);
    added_.clear();
    for (size_t before = begin; before < end; ++before) {
      const uint64_t kept = points_[before].kept + choice.kept;
      if (kept + fixed.kept[model + 1] > fixed.left) break;  // points ascend
      const double cost = points_[before].cost + choice.cost;
      if (Hopeless({cost + fixed.price * static_cast<double>(kept) + behind, fixed.price})) continue;
      added_.push_back({kept, cost, static_cast<uint32_t>(before), index});
    }
    looked_at_ += added_.size();
  }

  // Leaves `most` points of `next_`, spread over its bytes, the cheapest there.
  void Thin(const Fixed& fixed, size_t most) {
    const auto place = [&](const Point& point) { return point.kept / (fixed.left / most + 1); };
    const auto relaxed = [&](const Point& point) { return point.cost + fixed.price * static_cast<double>(point.kept); };
    merged_.clear();
    for (const Point& point : next_) {
      if (merged_.empty() || place(merged_.back()) != place(point))
        merged_.push_back(point);
      else if (relaxed(point) < relaxed(merged_.back()))
        merged_.back() = point;
    }
    std::swap(next_, merged_);
  }

  // Merges `next_` and `added_`, both ascending in bytes and descending in cost, without dominated points.
  void MergeAdded() {
    if (added_.empty()) return;
    merged_.clear();
    auto one = next_.begin(), other = added_.begin();
    while (one != next_.end() || other != added_.end()) {
      const bool first = other == added_.end() ||
                         (one != next_.end() && std::pair(one->kept, one->cost) <= std::pair(other->kept, other->cost));
      const Point& point = first ? *one++ : *other++;
      if (merged_.empty() || point.cost < merged_.back().cost) merged_.push_back(point);
    }
    std::swap(next_, merged_);
    if (points_.size() + next_.size() > kMostPoints)
      RaiseError("ExecutionError", "shares of ", models_.size(), " models take more than ", kMostPoints,
                 " partial choices: give fewer rungs of each");
  }

  void OfferEnding(size_t point) {
    std::vector<const Choice*> choices(models_.size());
    for (size_t model = models_.size(); model-- > 0; point = points_[point].before)
      choices[model] = &ladders_[model][points_[point].choice];
    Offer(choices);
  }

  // Takes the choices as the answer if the choices fit and are better.
  void Offer(const std::vector<const Choice*>& choices) {
    Answer answer{{}, 0, 0};
    std::vector<uint64_t> working(lanes_.size(), 0);
    for (size_t model = 0; model < choices.size(); ++model) {
      answer.rungs.push_back(choices[model]->rung);
      answer.cost += choices[model]->cost;
      answer.nbytes += choices[model]->kept;
      uint64_t& most = working[lane_of_[model]];
      most = std::max(most, choices[model]->working);
    }
    for (const uint64_t size : working) answer.nbytes += size;
    if (answer.nbytes <= budget_ && std::pair(answer.cost, answer.nbytes) < std::pair(best_.cost, best_.nbytes))
      best_ = std::move(answer);
  }

  double Rounding(double price) const { return kRounding * (best_.cost + price * static_cast<double>(budget_)); }

  // Whether nothing with this bound is better than the answer. As good with fewer bytes would have a lower bound, by their price.
  bool Hopeless(const Bound& bound) const { return bound.value >= best_.cost - Rounding(bound.price); }

  std::span<const ShareModel> models_;
  const uint64_t budget_;
  std::vector<Ladder> ladders_;
  std::vector<Lane> lanes_;
  std::vector<size_t> lane_of_;
  Answer best_;
  std::vector<Point> points_, next_, added_, merged_;
  uint64_t looked_at_ = 0;
};

}  // namespace

Shares ShareExactly(std::span<const ShareModel> models, uint64_t budget) {
  CheckShareModels(models);
  return Search(models, budget).Run();
}

}  // namespace flexcomp

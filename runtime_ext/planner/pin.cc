#include "pin.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace flexcomp::planner {
namespace {

constexpr int kHalvings = 18;  // of the interval of rates

// Flags the steps of `order` that still fit, one after the other.
void Fill(const PinTask& task, const std::vector<size_t>& order, int64_t capacity, std::vector<char>* pinned) {
  for (size_t step : order) {
    char& stays = (*pinned)[task.owner[step]];
    if (!stays && 0 < task.pages[step] && task.pages[step] <= capacity) {
      stays = 1;
      capacity -= task.pages[step];
    }
  }
}

std::vector<size_t> InOrder(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

int64_t PagesOf(const std::vector<int64_t>& pages, const std::vector<char>& pinned) {
  int64_t sum = 0;
  for (size_t step = 0; step < pages.size(); ++step) sum += pinned[step] ? pages[step] : 0;
  return sum;
}

// The steps whose segments cost more than a loader of that rate has earned.
void Late(const PinTask& task, double rate, std::vector<char>* late) {
  const std::vector<double>& costs = task.costs;
  double earned = 0.0;
  for (int turn = 0; turn < 2; ++turn) {
    std::fill(late->begin(), late->end(), 0);
    for (size_t step = 0; step < costs.size(); ++step) {
      char& pinned = (*late)[task.owner[step]];
      pinned |= costs[step] > std::max(earned, 0.0);
      earned -= pinned ? task.kept[step] : costs[step];
      earned += rate * task.seconds[step];
      const double limit = static_cast<double>(task.room[step]);
      if (earned > limit) earned = limit;
    }
  }
}

// The pages of these steps for each of three rates, where no steps share weights. One rate alone takes as long: each step waits for
// the one before.
std::array<int64_t, 3> LatePages(const PinTask& task, const std::array<double, 3>& rates) {
  std::array<double, 3> earned{};
  std::array<int64_t, 3> pages{};
  for (int turn = 0; turn < 2; ++turn) {
    pages = {};
    for (size_t step = 0; step < task.costs.size(); ++step) {
      const double cost = task.costs[step], kept = task.kept[step], limit = static_cast<double>(task.room[step]);
      for (size_t at = 0; at < rates.size(); ++at) {
        const bool late = cost > std::max(earned[at], 0.0);
        earned[at] -= late ? kept : cost;
        earned[at] = std::min(earned[at] + rates[at] * task.seconds[step], limit);
        pages[at] += late ? task.pages[step] : 0;
      }
    }
  }
  return pages;
}

std::vector<char> Evenly(const PinTask& task) {
  const size_t count = task.pages.size();
  std::vector<char> best(count), pinned(count);
  const int64_t total = std::accumulate(task.pages.begin(), task.pages.end(), int64_t{0});
  if (!total || task.capacity <= 0) return best;
  const double seconds = std::accumulate(task.seconds.begin(), task.seconds.end(), 0.0);
  double low = 0.0, high = 64 * std::max(task.bandwidth, static_cast<double>(total) / std::max(seconds, 1e-9));
  Late(task, high, &best);
  if (PagesOf(task.pages, best) > task.capacity) {
    std::fill(best.begin(), best.end(), 0);
    Fill(task, InOrder(count), task.capacity, &best);
    return best;
  }
  const bool shares = task.owner != InOrder(count);
  const auto halve = [&](double rate, int64_t pages) { (pages <= task.capacity ? high : low) = rate; };
  for (int halving = 0; halving < kHalvings; halving += shares ? 1 : 2) {
    const double rate = (low + high) / 2;
    if (shares) {
      Late(task, rate, &pinned);
      halve(rate, PagesOf(task.pages, pinned));
      continue;
    }
    const std::array<double, 3> rates{rate, (low + rate) / 2, (rate + high) / 2};
    const std::array<int64_t, 3> pages = LatePages(task, rates);
    const size_t next = pages[0] <= task.capacity ? 1 : 2;
    halve(rate, pages[0]);
    halve(rates[next], pages[next]);
  }
  Late(task, high, &best);
  Fill(task, InOrder(count), task.capacity - PagesOf(task.pages, best), &best);
  return best;
}

}  // namespace

std::vector<char> ChoosePins(Pins pins, PinTask task) {
  const size_t count = task.pages.size();
  if (pins == Pins::kEvenly) return Evenly(task);
  std::vector<size_t> order = InOrder(count);
  std::vector<char> pinned(count);
  if (pins == Pins::kSmall) {
    std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) { return task.pages[one] < task.pages[other]; });
  } else if (pins == Pins::kShared) {
    std::vector<int64_t> readers(count);
    for (size_t owner : task.owner) ++readers[owner];
    std::erase_if(order, [&](size_t step) { return readers[step] < 2; });
    std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) { return readers[one] > readers[other]; });
  }
  Fill(task, order, task.capacity, &pinned);
  if (pins != Pins::kShared) return pinned;
  // In the rest, as many segments as make loads even.
  task.capacity -= PagesOf(task.pages, pinned);
  for (size_t step = 0; step < count; ++step) {
    if (!pinned[task.owner[step]]) continue;
    task.pages[step] = 0;
    task.costs[step] = task.kept[step];
  }
  const std::vector<char> evenly = Evenly(task);
  for (size_t step = 0; step < count; ++step) pinned[step] |= evenly[step];
  return pinned;
}

}  // namespace flexcomp::planner

#include "pin.h"

#include <algorithm>
#include <numeric>

namespace flexcomp::planner {
namespace {

constexpr int kHalvings = 18;  // of the interval of rates

// Flags those of `order` that still fit, one after the other.
void Fill(const std::vector<int64_t>& pages, const std::vector<size_t>& order, int64_t capacity, std::vector<char>* pinned) {
  for (size_t step : order) {
    if (!(*pinned)[step] && 0 < pages[step] && pages[step] <= capacity) {
      (*pinned)[step] = 1;
      capacity -= pages[step];
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
    for (size_t step = 0; step < costs.size(); ++step) {
      (*late)[step] = costs[step] > std::max(earned, 0.0);
      earned -= (*late)[step] ? task.kept[step] : costs[step];
      earned += rate * task.seconds[step];
      const double limit = static_cast<double>(task.room[step]);
      if (earned > limit) earned = limit;
    }
  }
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
    Fill(task.pages, InOrder(count), task.capacity, &best);
    return best;
  }
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double rate = (low + high) / 2;
    Late(task, rate, &pinned);
    if (PagesOf(task.pages, pinned) <= task.capacity) {
      best.swap(pinned);
      high = rate;
    } else {
      low = rate;
    }
  }
  Fill(task.pages, InOrder(count), task.capacity - PagesOf(task.pages, best), &best);
  return best;
}

}  // namespace

std::vector<char> ChoosePins(Pins pins, const PinTask& task) {
  if (pins == Pins::kEvenly) return Evenly(task);
  std::vector<size_t> order = InOrder(task.pages.size());
  if (pins == Pins::kSmall) {
    std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) { return task.pages[one] < task.pages[other]; });
  }
  std::vector<char> pinned(task.pages.size());
  Fill(task.pages, order, task.capacity, &pinned);
  return pinned;
}

}  // namespace flexcomp::planner

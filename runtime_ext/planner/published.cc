#include "published.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "preload.h"

namespace flexcomp::planner {

int64_t FlexNn(std::vector<PageSet>* free, const int64_t* weights, const int64_t* scratch, int64_t* after, int64_t* first,
               int64_t* scratch_first) {
  Window window, room;
  int64_t earliest = 0;
  for (int64_t step = 0; step < static_cast<int64_t>(free->size()); ++step) {
    PageSet& here = (*free)[step];
    const int64_t count = weights[step];
    bool placed = false;
    for (int64_t bound : {earliest, step}) {  // with preloading, then without
      PageSet rest = here;
      if (count) {
        after[step] = window.EarliestPlace(*free, {step, step + 1, 0, count * kPage}, bound, 0);
        if (after[step] < 0) continue;
        first[step] = window.ranges().front().first;
        rest.Remove(first[step], first[step] + count);
      }
      if (scratch[step]) {
        room.Begin(rest, scratch[step], 0);
        if (room.empty()) continue;
        scratch_first[step] = room.ranges().front().first;
      }
      placed = true;
      break;
    }
    if (!placed) return step;
    if (count) {
      earliest = after[step];
      for (int64_t time = earliest; time <= step; ++time) (*free)[time].Remove(first[step], first[step] + count);
    }
    if (scratch[step]) here.Remove(scratch_first[step], scratch_first[step] + scratch[step]);
  }
  return -1;
}

std::vector<int64_t> Partition(int64_t layers, const int64_t* nbytes_upto, const double* seconds_upto, double single_s,
                               double bandwidth, int64_t room) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const int64_t width = layers + 1;
  // latency[a, b]: until the computing of block [a, b) starts; previous[a, b]: the start of the previous block
  std::vector<double> latency(width * width, kNever), before(width);
  std::vector<int64_t> previous(width * width, -1);
  const auto swap_in = [&](int64_t start, int64_t stop) {
    const int64_t nbytes = nbytes_upto[stop] - nbytes_upto[start];
    return nbytes > 0 ? single_s + static_cast<double>(nbytes) / bandwidth : 0.0;
  };
  for (int64_t stop = 1; stop <= layers; ++stop) {
    if (nbytes_upto[stop] <= room) latency[stop] = swap_in(0, stop);
  }
  for (int64_t start = 1; start < layers; ++start) {
    for (int64_t begin = 0; begin < start; ++begin) before[begin] = latency[begin * width + start];
    for (int64_t stop = start + 1; stop <= layers; ++stop) {
      const double reading = swap_in(start, stop);
      double least = kNever;
      int64_t best = 0;
      for (int64_t begin = 0; begin < start; ++begin) {
        if (nbytes_upto[stop] - nbytes_upto[begin] > room) continue;
        const double total = before[begin] + std::max(seconds_upto[start] - seconds_upto[begin], reading);
        if (total < least) {
          least = total;
          best = begin;
        }
      }
      latency[start * width + stop] = least;
      previous[start * width + stop] = best;
    }
  }
  int64_t start = 0;
  double least = kNever;
  for (int64_t each = 0; each < layers; ++each) {
    const double whole = latency[each * width + layers] + (seconds_upto[layers] - seconds_upto[each]);
    if (whole < least) {
      least = whole;
      start = each;
    }
  }
  std::vector<int64_t> starts;
  if (!std::isfinite(least)) return starts;
  for (int64_t stop = layers; true;) {
    starts.push_back(start);
    if (!start) break;
    const int64_t earlier = previous[start * width + stop];
    stop = start;
    start = earlier;
  }
  std::reverse(starts.begin(), starts.end());
  return starts;
}

}  // namespace flexcomp::planner

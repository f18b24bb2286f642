#include "published.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

namespace {

// The first of the starts of previous blocks with the least total, for one start of a block and its stops in descending order.
//
// total(begin) = before[begin] + max(computing[begin], reading): `computing` falls with the begin, so those up to some begin count
// with their computing, the others with the reading. With the stop the reading falls and more begins have room: the range of
// the former grows at both ends, and that of the latter is a suffix. So all stops together take linear time.
class Previous {
 public:
  Previous(const double* before, const double* seconds_upto, int64_t start)
      : before_(before), seconds_upto_(seconds_upto), start_(start), least_(start), next_less_(start) {
    for (int64_t at = start - 1; at >= 0; --at) {
      int64_t next = at + 1;
      while (next < start && before[next] >= before[at]) next = next_less_[next];
      next_less_[at] = next;
      least_[at] = next < start ? least_[next] : before[at];
    }
  }

  // Of begins from `least_begin` on; both arguments never larger than at the call before.
  std::pair<double, int64_t> Best(int64_t least_begin, double reading) {
    while (computed_ < start_ && Computing(computed_) >= reading) ++computed_;
    if (first_ >= end_) first_ = end_ = std::min(least_begin, computed_);
    for (; end_ < computed_; ++end_)
      if (const double total = before_[end_] + Computing(end_); total < total_) total_ = total, best_ = end_;
    while (first_ > least_begin) {
      --first_;
      if (const double total = before_[first_] + Computing(first_); total <= total_) total_ = total, best_ = first_;
    }
    int64_t at = std::max(least_begin, computed_);
    if (at >= start_ || least_[at] + reading >= total_) return {total_, best_};
    const double total = least_[at] + reading;
    while (before_[at] + reading > total) at = next_less_[at];
    return {total, at};
  }

 private:
  double Computing(int64_t begin) const { return seconds_upto_[start_] - seconds_upto_[begin]; }

  const double* before_;
  const double* seconds_upto_;
  int64_t start_;
  std::vector<double> least_;       // of `before`, from a begin on
  std::vector<int64_t> next_less_;  // the next begin whose `before` is less
  int64_t computed_ = 0;            // begins below count with their computing
  int64_t first_ = 0, end_ = 0;     // those of them that are compared
  double total_ = std::numeric_limits<double>::infinity();
  int64_t best_ = 0;
};

}  // namespace

std::vector<int64_t> Partition(int64_t layers, const int64_t* nbytes_upto, const double* seconds_upto, double single_s,
                               double bandwidth, int64_t room) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // Of block [start, stop), by stop: when its computing starts, and the start of the block before it.
  const auto of = [](int64_t stop) { return stop * (stop - 1) / 2; };
  std::vector<double> latency(of(layers + 1), kNever);
  std::vector<int32_t> previous(of(layers + 1), -1);
  const auto swap_in = [&](int64_t start, int64_t stop) {
    const int64_t nbytes = nbytes_upto[stop] - nbytes_upto[start];
    return nbytes > 0 ? single_s + static_cast<double>(nbytes) / bandwidth : 0.0;
  };
  for (int64_t stop = 1; stop <= layers; ++stop) {
    if (nbytes_upto[stop] <= room) latency[of(stop)] = swap_in(0, stop);
  }
  for (int64_t start = 1; start < layers; ++start) {
    Previous found(&latency[of(start)], seconds_upto, start);
    int64_t least_begin = start;
    for (int64_t stop = layers; stop > start; --stop) {
      while (least_begin > 0 && nbytes_upto[stop] - nbytes_upto[least_begin - 1] <= room) --least_begin;
      const auto [least, best] = found.Best(least_begin, swap_in(start, stop));
      latency[of(stop) + start] = least;
      previous[of(stop) + start] = static_cast<int32_t>(best);
    }
  }
  int64_t start = 0;
  double least = kNever;
  for (int64_t each = 0; each < layers; ++each) {
    const double whole = latency[of(layers) + each] + (seconds_upto[layers] - seconds_upto[each]);
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
    const int64_t earlier = previous[of(stop) + start];
    stop = start;
    start = earlier;
  }
  std::reverse(starts.begin(), starts.end());
  return starts;
}

}  // namespace flexcomp::planner

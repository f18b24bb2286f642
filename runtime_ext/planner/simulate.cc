#include "simulate.h"

#include <algorithm>
#include <memory>

#include "reuse.h"

namespace flexcomp::planner {
namespace {

struct Span {
  double start, end;  // seconds from the start of the inference
};

// Loads and steps to simulate. After the loads of an inference follow the loads of the next one that begin in it.
struct Work {
  const Plan& plan;
  const Storage& storage;
  std::vector<double> seconds;  // of each step, undisturbed
  std::vector<double> durations, paces;
  size_t own;  // loads of the inference

  const Segment& segment(size_t number) const { return plan.segments[number < own ? number : number - own]; }
  // The time at which a storage that is free at `free` begins a load requested at `asked`.
  double Served(double free, double asked, size_t number) const {
    const double wake = asked > free ? storage.wake_s : 0.0;
    return std::max(free, asked + wake + Latency(number));
  }
  // Of the storage, or 0 for a load from kept stored weights, which does not read the storage.
  double Latency(size_t number) const { return segment(number).kept() ? 0.0 : storage.latency_s; }
};

Work WorkOf(const Problem& problem, const Plan& plan) {
  const Storage& storage = problem.storage;
  Work work{plan, storage, {}, {}, {}, plan.segments.size()};
  for (const Step& step : plan.steps) {
    const Layer& layer = problem.layers[step.layer];
    const double part = layer.seconds * static_cast<double>(step.count) / static_cast<double>(layer.blocks());
    work.seconds.push_back(part + (step.first ? layer.slice_s : 0.0));
  }
  std::vector<double> distances;
  if (storage.cache) distances = ReuseDistances(plan.segments);
  size_t streamed = 0, begun = 0;
  const double cache = static_cast<double>(storage.cache);
  for (size_t number = 0; number < work.own; ++number) {
    const Segment& one = plan.segments[number];
    double bandwidth = storage.bandwidth, disturbance = storage.disturbance;
    if (storage.cache) {
      const double distance = one.pinned ? 2 * cache : distances[streamed++];
      const double beyond = std::clamp(2 * (distance / cache - 1), 0.0, 1.0);
      bandwidth = storage.bandwidth * (1 + (storage.cached - 1) * (1 - beyond));
      disturbance = storage.disturbance * std::max(storage.in_cache, beyond);
    }
    const double nbytes = static_cast<double>(one.nbytes);
    const double price = problem.layers[plan.steps[one.step].layer].prepare_s, preparing = nbytes * price;
    const int64_t beyond_huge = price > 0 ? 0 : one.address + one.nbytes - plan.arena / kHugePage * kHugePage;
    const auto small = static_cast<double>(std::clamp<int64_t>(beyond_huge, 0, one.nbytes));
    work.durations.push_back(one.kept() ? preparing
                                        : storage.overhead_s + (nbytes * problem.LoadCost(plan.steps, one.step) +
                                                                (storage.small_pages - 1) * small) /
                                                                   bandwidth);
    work.paces.push_back(1 + (disturbance * nbytes + storage.core_contention * preparing) / work.durations.back());
    if (one.ahead) begun = number + 1;
  }
  for (size_t number = 0; number < begun; ++number) {
    work.durations.push_back(work.durations[number]);
    work.paces.push_back(work.paces[number]);
  }
  for (size_t number = 0; number < work.durations.size(); ++number) {
    if (work.segment(number).pinned) work.durations[number] = 0.0;
  }
  return work;
}

// One simulated inference; times from its start.
class Lap {
 public:
  Lap(const Work& work, const Lap* before) : work_(work), before_(before) {
    loads_.reserve(work.durations.size());
    steps_.reserve(work.seconds.size());
    if (before && work.own) loaded_at_ = before->loads_[work.own - 1].end - before->end_;
  }

  double end() const { return end_; }

  // False if the waits never end.
  bool Play(Waits* waits) {
    const size_t count = work_.seconds.size();
    for (size_t index = 0; index <= count; ++index) {
      const size_t need = index < count ? static_cast<size_t>(work_.plan.need[index]) : work_.own;
      if (!Wait(need)) {
        *waits = {static_cast<int64_t>(index), work_.segment(loads_.size()).after};
        return false;
      }
      if (index < count) Compute(work_.seconds[index], need);
    }
    return true;
  }

 private:
  // Run the first `need` loads, while computing waits; false if a load waits for a step that has not been computed.
  bool Wait(size_t need) {
    if (!loads_.empty() && need >= loads_.size()) Help();
    while (loads_.size() < need) {
      if (!Load()) return false;
      Help();
    }
    return true;
  }

  // Shorten the last load by the part that the thread reads that has waited since the last step.
  void Help() {
    Span& last = loads_.back();
    const Storage& storage = work_.storage;
    const double copying = std::min(last.end - std::max(last.start, end_), last.end - last.start - storage.overhead_s);
    if (copying > 0 && storage.together > 1 && !work_.segment(loads_.size() - 1).kept()) {
      loaded_at_ = last.end - copying * (1 - 1 / storage.together);
      last.end = loaded_at_;
    }
  }

  // Run the next load; false if there is none, or if the load waits for a step that has not been computed.
  bool Load() {
    const size_t number = loads_.size();
    if (number == work_.durations.size()) return false;
    const Segment& segment = work_.segment(number);
    const double latency = work_.Latency(number);
    double start = loaded_at_;
    if (segment.ahead && number < work_.own) {
      start = before_ ? work_.Served(start, before_->steps_[segment.after - 1].end - before_->end_, number)
                      : std::max(start, latency);
    } else if (work_.durations[number] != 0) {
      if (segment.after > static_cast<int64_t>(steps_.size())) return false;
      const double asked = segment.after ? steps_[segment.after - 1].end : 0.0;
      start = asked != 0 ? work_.Served(start, asked, number) : std::max(start, latency);
    }
    loaded_at_ = start + work_.durations[number];
    loads_.push_back({start, loaded_at_});
    return true;
  }

  void Compute(double seconds, size_t need) {
    double start = end_;
    if (need && loads_[need - 1].end > end_) start = loads_[need - 1].end + work_.storage.wake_s;
    end_ = work_.storage.disturbance > 0 || work_.storage.core_contention > 0 ? Disturbed(start, start + seconds) : start + seconds;
    steps_.push_back({start, end_});
  }

  // The end of a step that would end at `end` without concurrent loads.
  double Disturbed(double start, double end) {
    while (over_ < loads_.size() || Load()) {
      const double begin = std::max(loads_[over_].start, start), finish = loads_[over_].end;
      if (begin >= end) break;
      if (finish > begin) {
        const double pace = work_.paces[over_];
        if ((end - begin) * pace <= finish - begin) return begin + (end - begin) * pace;
        end += (finish - begin) * (1 - 1 / pace);
        start = finish;
      }
      ++over_;
    }
    return end;
  }

  const Work& work_;
  const Lap* before_;
  std::vector<Span> loads_, steps_;
  double end_ = 0.0, loaded_at_ = 0.0;
  size_t over_ = 0;  // loads that ended before the step that runs
};

}  // namespace

bool Simulate(const Problem& problem, const Plan& plan, double* latency, Waits* waits) {
  const Work work = WorkOf(problem, plan);
  auto lap = std::make_unique<Lap>(work, nullptr);
  if (!lap->Play(waits)) return false;
  bool same = work.durations.size() == work.own;  // nothing begins ahead
  for (int64_t again = 0; !same && again < problem.storage.most_laps; ++again) {
    auto following = std::make_unique<Lap>(work, lap.get());
    if (!following->Play(waits)) return false;
    same = std::abs(following->end() - lap->end()) < problem.storage.same_s;
    lap = std::move(following);
  }
  *latency = lap->end();
  return true;
}

}  // namespace flexcomp::planner

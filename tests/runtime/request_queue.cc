// Requests in random queues: what `Look` foresees is what happens when they run in their order.
#include "pool/request_queue.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

using flexcomp::Queued;
using flexcomp::RequestQueue;

namespace {

constexpr uint32_t kModels = 3, kShapes = 2;

void Require(bool right, const char* what) {
  if (right) return;
  std::printf("%s\n", what);
  std::exit(1);
}

// The first of a model loads, once.
RequestQueue::SecondsOf Seconds() {
  return [seen = std::set<uint32_t>()](const Queued& request) mutable {
    return 0.1 * (request.model + 1) / (request.shape + 1) + (seen.insert(request.model).second ? 0.05 : 0.0);
  };
}

// When each ends that is not dropped, in the order in which they are due.
std::map<uint64_t, double> Ends(std::vector<Queued> requests, double free) {
  std::ranges::sort(requests, {}, [](const Queued& request) { return std::tuple(request.due, -request.urgency, request.id); });
  const auto seconds = Seconds();
  std::map<uint64_t, double> ends;
  for (const Queued& request : requests) ends[request.id] = free += seconds(request);
  return ends;
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  int refused = 0, spoiled = 0;
  for (int round = 0; round < 20000; ++round) {
    RequestQueue queue;
    std::vector<Queued> requests;
    const auto draw = [&](uint64_t id) {
      Queued request{id, static_cast<uint32_t>(random() % kModels), static_cast<uint32_t>(random() % kShapes), 0, 0.1 * static_cast<double>(random() % 20)};  // some at once
      request.urgency = static_cast<double>(random() % 3);
      if (random() % 2 == 0) request.deadline = request.due;
      return request;
    };
    for (uint64_t id = 1, count = random() % 8; id <= count; ++id) {
      requests.push_back(draw(id));
      queue.MakeRoom();
      queue.Push(requests.back());
    }
    const auto order = [](const Queued& request) { return std::pair(request.due, -request.urgency); };
    Require(std::ranges::is_sorted(queue.requests(), {}, order), "the order is wrong");
    double next = INFINITY;
    for (const Queued& request : requests) next = std::min(next, request.deadline.value_or(INFINITY));
    Require(queue.NextDeadline() == next, "another deadline is the next");
    const double free = uniform(0, 0.5);
    const Queued asked = draw(100);
    const auto outlook = queue.Look(asked, free, Seconds());
    const auto before = Ends(requests, free);
    requests.push_back(asked);
    const auto after = Ends(requests, free);
    Require(std::abs(outlook.ends - after.at(100)) < 1e-9, "the request ends at another time");
    // Loads move to whoever is first of a model, so that those behind may be foreseen a load too late, but never too early.
    bool spoils = false;
    for (const Queued& other : requests)
      if (other.id != 100 && other.deadline && before.at(other.id) <= *other.deadline && after.at(other.id) > *other.deadline) spoils = true;
    const bool late = asked.deadline && after.at(100) > *asked.deadline;
    if (outlook.meets) Require(!late && !spoils, "a request is admitted that is late, or makes another late");
    refused += !outlook.meets;
    spoiled += outlook.spoiled != nullptr;

    const double now = uniform(0, 2);
    const size_t all = queue.size();
    std::vector<Queued> dropped;
    queue.TakeOut([&](const Queued& request) noexcept {
      if (!request.deadline || *request.deadline >= now) return false;
      dropped.push_back(request);
      return true;
    });
    Require(dropped.size() + queue.size() == all, "a request is lost");
    for (const Queued& request : dropped) Require(request.deadline && *request.deadline < now, "a request is dropped that is not late");
    for (const Queued& request : queue.requests()) Require(!request.deadline || *request.deadline >= now, "a late request stays");
  }
  Require(refused > 1000 && spoiled > 500, "hardly anything was refused");
  // Whatever waits is due in the end: nothing that comes later is ever put before it for good.
  Require(RequestQueue::Due(0, 1e6, 1e-6) <= RequestQueue::kMostPatience, "a request may wait for ever");
  std::printf("%d refused, %d as they would spoil another\n", refused, spoiled);
  return 0;
}

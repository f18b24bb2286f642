#include "pool/request_queue.h"

#include <algorithm>
#include <cmath>

namespace flexcomp {
namespace {

bool Before(const Queued& a, const Queued& b) noexcept {
  if (a.due != b.due) return a.due < b.due;
  return a.urgency != b.urgency ? a.urgency > b.urgency : a.id < b.id;
}

}  // namespace

void RequestQueue::MakeRoom() {
  if (requests_.capacity() < requests_.size() + 2) requests_.reserve(2 * requests_.size() + 2);
}

void RequestQueue::Push(const Queued& request) noexcept {
  requests_.insert(std::ranges::upper_bound(requests_, request, Before), request);
}

bool RequestQueue::Remove(uint64_t id) noexcept {
  return std::erase_if(requests_, [id](const Queued& request) { return request.id == id; }) > 0;
}

double RequestQueue::NextDeadline() const noexcept {
  double next = INFINITY;
  for (const Queued& request : requests_) next = std::min(next, request.deadline.value_or(INFINITY));
  return next;
}

RequestQueue::Outlook RequestQueue::Look(const Queued& request, double free, const SecondsOf& seconds) const {
  const auto behind = std::ranges::upper_bound(requests_, request, Before);
  double time = free;
  for (auto other = requests_.begin(); other != behind; ++other) time += seconds(*other);
  const double own = seconds(request);
  Outlook outlook{true, time + own, nullptr};
  outlook.meets = !request.deadline || outlook.ends <= *request.deadline;
  for (auto other = behind; other != requests_.end(); ++other) {
    time += seconds(*other);
    // One that would be late in any case is nobody's fault.
    if (other->deadline && time <= *other->deadline && time + own > *other->deadline) {
      outlook.meets = false;
      outlook.spoiled = &*other;
      break;
    }
  }
  return outlook;
}

double RequestQueue::Seconds(const SecondsOf& seconds) const {
  double sum = 0;
  for (const Queued& request : requests_) sum += seconds(request);
  return sum;
}

}  // namespace flexcomp

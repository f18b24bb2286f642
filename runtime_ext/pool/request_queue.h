// The requests of a lane, in the order of their due times.
//
// Among requests due at the same time the urgent one comes first. A request with a deadline is due then. One without is
// due after a wait of kPatience times its run time, less where urgent, but never more than kMostPatience. So short and
// urgent requests come first, and none waits for ever, because later requests are due later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace flexcomp {

struct Queued {
  uint64_t id = 0;
  uint32_t model = 0, shape = 0;      // of the model's library
  double arrived = 0, due = 0;        // seconds of a monotonic clock
  std::optional<double> deadline{};   // the request is refused, or dropped, rather than late
  double urgency = 1;                 // the cost of a second of waiting
};

class RequestQueue {
 public:
  // The time of a request. Asked in the order of execution, as the first request of a model may take longer.
  using SecondsOf = std::function<double(const Queued&)>;

  static constexpr double kPatience = 10, kMostPatience = 60;  // times; seconds

  // When a request without a deadline is due, that takes `seconds`.
  static double Due(double now, double seconds, double urgency) noexcept {
    return now + std::min(kPatience * seconds / urgency, kMostPatience);
  }

  // So that two more may be pushed: a new request, and the lane's running request, if that comes back.
  void MakeRoom();
  void Push(const Queued& request) noexcept;  // there is room
  bool Remove(uint64_t id) noexcept;
  bool empty() const noexcept { return requests_.empty(); }
  size_t size() const noexcept { return requests_.size(); }
  const Queued& first() const noexcept { return requests_.front(); }
  const std::vector<Queued>& requests() const noexcept { return requests_; }  // in their order

  // Takes out the requests for which `taken`, which is noexcept, returns true.
  template <typename Taken>
  void TakeOut(const Taken& taken) noexcept {
    static_assert(std::is_nothrow_invocable_r_v<bool, const Taken&, const Queued&>);
    std::erase_if(requests_, taken);
  }
  // The first deadline of any; infinite: there is none.
  double NextDeadline() const noexcept;

  // Whether `request` could end before its deadline, and all later ones still could, if the lane is free at `free`; the
  // request's end otherwise.
  struct Outlook {
    bool meets;
    double ends;       // the request
    const Queued* spoiled;  // another whose deadline would pass; nullptr: none
  };
  Outlook Look(const Queued& request, double free, const SecondsOf& seconds) const;

  // How long all of them take.
  double Seconds(const SecondsOf& seconds) const;

 private:
  std::vector<Queued> requests_;
};

}  // namespace flexcomp

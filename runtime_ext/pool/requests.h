// The requests of a pool, from the call that makes one to the call that forgets it.
//
// All memory of a request is allocated before the request is in a queue: nothing afterwards can fail for want of
// memory. The caller puts the end into words.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/model.h"
#include "pool/request_queue.h"

namespace flexcomp {

struct RequestOptions {
  std::optional<double> deadline_s;  // from now; none: the model's
  bool late = false;                 // run the request even after the deadline
  bool collected = false;            // `Collect` reports the end
  bool here = false;                 // run in the submitting call, if the model is quick and nothing else waits or runs
};

// Why a request was not admitted, or not begun.
struct Refusal {
  std::string reason;  // "queue" or "deadline"
  std::string message;
  double retry_after_s = 0;
};

struct Completion {
  double wait_s = 0, run_s = 0;
  size_t rung = 0;
};

struct Request {
  enum class End {
    kNone,
    kRan,
    kFailed,
    kLate,
    kCancelled,
    kRemoved,
    kClosed
  };

  Queued queued;
  std::shared_ptr<Model> model;
  std::optional<double> deadline;  // including requests that may be late
  bool late = false, collected = false;
  std::vector<tvm::ffi::Any> tensors;
  bool running = false, here = false;  // here: runs in the submitting call
  bool forgotten = false;
  bool unwanted = false;  // cancelled or forgotten while running
  End end = End::kNone;
  std::optional<tvm::ffi::Error> error{};  // why the request failed
  Completion completion{};
  std::list<uint64_t> note{};  // the request's number, where the end is to be collected and not yet reported

  bool done() const noexcept { return end != End::kNone; }
};

// Of a request that is done.
struct Answer {
  bool cancelled = false;
  std::optional<Refusal> refusal{};
  Completion completion{};
};

// Throws the error of the run, or the reason for no run. A finished request stays, and can be asked again.
Answer AnswerOf(const Request& request);

// By number. The pool's mutex guards them.
class Requests {
 public:
  // Throws InputError where there is one of this number already; then, as with any other error, nothing has changed.
  std::shared_ptr<Request> Insert(uint64_t id, Request&& request);
  std::shared_ptr<Request> Find(uint64_t id) const noexcept;  // nullptr: there is none
  // Requests in a queue are there.
  const std::shared_ptr<Request>& At(uint64_t id) const noexcept { return requests_.find(id)->second; }
  template <typename Function>
  void ForEach(const Function& function) const noexcept {
    for (const auto& [id, request] : requests_) function(*request);
  }
  // Whether the end is to be reported to the collector.
  bool End(Request& request, Request::End end) noexcept;
  // No one will ask for the request. The request goes, with its tensors, when the caller releases the pointer; nullptr:
  // there is none.
  std::shared_ptr<Request> Forget(uint64_t id) noexcept;
  // The first finished request among those to be collected; 0: there is none. The request stays the first until
  // forgotten.
  uint64_t first_done() const noexcept { return done_.empty() ? 0 : done_.front(); }

 private:
  std::map<uint64_t, std::shared_ptr<Request>> requests_;
  std::list<uint64_t> done_;
};

}  // namespace flexcomp

#include "pool/requests.h"

#include <utility>

#include "base/error.h"

namespace flexcomp {

std::shared_ptr<Request> Requests::Insert(uint64_t id, Request&& request) {
  auto made = std::make_shared<Request>(std::move(request));
  if (made->collected) made->note.push_back(id);
  if (!requests_.emplace(id, made).second) RaiseError("InputError", "there is a request ", id, " already");
  return made;
}

std::shared_ptr<Request> Requests::Find(uint64_t id) const noexcept {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second;
}

bool Requests::End(Request& request, Request::End end) noexcept {
  request.running = false;
  request.end = end;
  if (request.forgotten || request.here || !request.collected) return false;
  done_.splice(done_.end(), request.note);
  return true;
}

std::shared_ptr<Request> Requests::Forget(uint64_t id) noexcept {
  auto node = requests_.extract(id);
  if (node.empty()) return nullptr;
  done_.remove(id);
  node.mapped()->forgotten = true;
  return std::move(node.mapped());
}

Answer AnswerOf(const Request& request) {
  switch (request.end) {
    case Request::End::kFailed:
      throw *request.error;
    case Request::End::kRemoved:
      RaiseError("InputError", "the model ", request.model->name, " was removed from the pool");
    case Request::End::kClosed:
      RaiseError("ExecutionError", "the pool was closed");
    case Request::End::kLate:
      return {.refusal = Refusal{"deadline", "the deadline of a request of " + request.model->name + " passed while it waited", 0}};
    case Request::End::kCancelled:
      return {.cancelled = true};
    case Request::End::kNone:
    case Request::End::kRan:
      break;
  }
  return {.completion = request.completion};
}

}  // namespace flexcomp

#include "door.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "handshake.h"
#include "say.h"

namespace flexcomp::server {
namespace {

// A greeting takes one round trip. When there are more at a time, the oldest has to go: that one had its chance.
constexpr size_t kMostVisitors = 64;
constexpr size_t kMostGuests = 16;
constexpr std::chrono::seconds kListenerRest{1};

}  // namespace

void Door::Watch(std::vector<pollfd>& polled) const {
  polled.push_back({Clock::now() < rest_until_ ? -1 : listener_.get(), POLLIN, 0});
  for (const Visitor& visitor : visitors_) polled.push_back({visitor.connection.get(), POLLIN, 0});
  for (const Guest& guest : guests_) polled.push_back({guest.connection.get(), POLLRDHUP, 0});
}

void Door::Attend(std::span<const pollfd> polled) {
  ForgetGone();
  std::deque<Visitor> stay;
  for (size_t i = 0; i < visitors_.size(); ++i) {
    Visitor& visitor = visitors_[i];
    if (polled[i + 1].revents != 0 && !Hear(visitor)) continue;
    if (Clock::now() < visitor.until) stay.push_back(std::move(visitor));
    else Say("a client took too long to say who it is");
  }
  visitors_ = std::move(stay);
  if (polled[0].revents != 0) Accept();
}

void Door::ForgetGone() {
  std::erase_if(guests_, [](const Guest& guest) {
    pollfd one{guest.connection.get(), POLLRDHUP, 0};
    return ::poll(&one, 1, 0) != 0;
  });
}

void Door::Accept() {
  while (true) {
    UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {
        Say(std::string("cannot let a client in: ") + std::strerror(errno));
        rest_until_ = Clock::now() + kListenerRest;
      }
      return;
    }
    if (visitors_.size() == kMostVisitors) visitors_.pop_front();
    visitors_.push_back({std::move(connection), {}, Clock::now() + patience_});
  }
}

bool Door::Hear(Visitor& visitor) {
  const int fd = visitor.connection.get();
  Greeting greeting;
  // Bytes after the greeting are not taken: those are for the session.
  for (greeting = ReadGreeting(visitor.heard); greeting.state == Greeting::kUnfinished; greeting = ReadGreeting(visitor.heard)) {
    char piece[kLongestGreeting];
    const ssize_t received = ::recv(fd, piece, std::min(sizeof piece, greeting.wanted - visitor.heard.size()), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return true;
    if (received <= 0) return false;
    visitor.heard.append(piece, static_cast<size_t>(received));
  }
  if (guests_.size() == kMostGuests) ForgetGone();
  if (greeting.state == Greeting::kMalformed) {
    Say("a client was sent away: " + greeting.trouble);
  } else if (!key_ || !SameKey(greeting.key, *key_)) {
    SendNow(fd, Refusal());
    Say("a client came with another key");
  } else if (guests_.size() == kMostGuests) {
    Say("a client was sent away: too many are waiting");
  } else {
    guests_.push_back({std::move(visitor.connection), greeting.seconds});
  }
  return false;
}

Clock::time_point Door::until() const {
  Clock::time_point first = Clock::time_point::max();
  for (const Visitor& visitor : visitors_) first = std::min(first, visitor.until);
  return rest_until_ > Clock::now() ? std::min(first, rest_until_) : first;
}

std::optional<Door::Guest> Door::Next() {
  if (guests_.empty()) return std::nullopt;
  Guest guest = std::move(guests_.front());
  guests_.pop_front();
  return guest;
}

}  // namespace flexcomp::server

// Clients that have come and have no session yet. However slow or silent one is, no other client has to wait.
#pragma once

#include <poll.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net.h"

namespace flexcomp::server {

class Door {
 public:
  struct Guest {
    UniqueFd connection;
    double seconds = 0;  // limit for the session; 0: none was named
  };

  // Every client has `patience` for its whole greeting.
  Door(UniqueFd listener, Clock::duration patience) : listener_(std::move(listener)), patience_(patience) {}

  // Only clients that name this key are let in from now on; none: nobody is.
  void Expect(std::optional<std::string> key) { key_ = std::move(key); }

  // Appends the sockets to poll.
  void Watch(std::vector<pollfd>& polled) const;
  // Deals with the sockets that `Watch` appended, after poll: lets new clients in, reads on, and forgets clients that
  // took too long or hung up.
  void Attend(std::span<const pollfd> polled);
  // When that should happen again, if nobody stirs.
  Clock::time_point until() const;

  // The client that greeted first, if any.
  std::optional<Guest> Next();

 private:
  struct Visitor {
    UniqueFd connection;
    std::string heard;
    Clock::time_point until;
  };

  void ForgetGone();  // of waiting clients
  void Accept();
  bool Hear(Visitor& visitor);  // false: the client is no visitor any more

  UniqueFd listener_;
  Clock::duration patience_;
  std::optional<std::string> key_;
  Clock::time_point rest_until_{};  // no new clients before: the system has no room for them
  std::deque<Visitor> visitors_;    // in the middle of their greeting, in the order of arrival
  std::deque<Guest> guests_;        // clients that named the key, and wait
};

}  // namespace flexcomp::server

// One client's session: a process and a folder of its own, gone at the session's end. Nothing here waits for the
// process.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "net.h"

namespace flexcomp::server {

class Session {
 public:
  struct Limits {
    double seconds;            // that the session may take
    Clock::duration patience;  // with a stopped process, or one whose client is gone, before the process is killed
  };

  // Serves the client on `connection` with files in a new folder under `work_dir`. The process runs with
  // `signals` blocked and no others. Throws std::system_error if there is no room for the folder or the process.
  Session(UniqueFd connection, const std::string& work_dir, Limits limits, const sigset_t& signals);
  // Ends the process, if need be, and removes the folder.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The descriptor to poll, to notice that the client has gone.
  pollfd Watch() const { return {gone_ ? -1 : connection_.get(), POLLRDHUP, 0}; }
  // After poll, and after every SIGCHLD. How the session ended, once ended.
  std::optional<std::string> Attend(const pollfd& polled);
  // When that should happen again, if nothing stirs.
  Clock::time_point until() const;

 private:
  void Kill(std::string why);

  UniqueFd connection_;  // the child's; kept to see the client go
  std::string folder_;
  Limits limits_;
  Clock::time_point over_at_;
  pid_t child_ = -1;
  bool gone_ = false, reaped_ = false;
  std::optional<Clock::time_point> idle_until_;    // the client is gone
  std::optional<Clock::time_point> stopped_until_;
  std::optional<Clock::time_point> lost_at_;       // the process was killed: then nobody waits for its end any more
  std::string why_;                                // the process was killed
};

}  // namespace flexcomp::server

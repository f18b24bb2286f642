// Remembers the process that made this. Threads do not follow into a forked child: an owner of threads must neither
// wait for them, nor join or detach them there.
#pragma once

#include <unistd.h>

namespace flexcomp {

class ProcessMark {
 public:
  bool IsThisProcess() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace flexcomp

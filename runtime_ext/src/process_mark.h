// Remembers the process it was made in. Threads do not follow into a forked child: whoever owns some must neither
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

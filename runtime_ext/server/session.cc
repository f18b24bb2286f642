#include "session.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "say.h"

namespace flexcomp::server {
namespace {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;

[[noreturn]] void FailSystem(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// The functions that TVM's side of the protocol expects of a server; all else is in libtvm_runtime.
void RegisterFunctions(const fs::path& folder) {
  const auto place = [folder](const ffi::String& name) { return (folder / std::string(name)).string(); };
  ffi::Function::SetGlobal("tvm.rpc.server.workpath",
                           ffi::Function::FromTyped([place](const ffi::String& name) { return ffi::String(place(name)); }));
  ffi::Function::SetGlobal(
      "tvm.rpc.server.load_module",
      ffi::Function::FromTyped([place](const ffi::String& name) { return ffi::Module::LoadFromFile(place(name)); }));
  ffi::Function::SetGlobal("tvm.rpc.server.listdir", ffi::Function::FromTyped([place](const ffi::String& name) {
                             std::string names;
                             for (const auto& entry : fs::directory_iterator(place(name)))
                               names += (names.empty() ? "" : ",") + entry.path().filename().string();
                             return ffi::String(names);
                           }));
}

// A child needs no other client's connection, and holding one would keep that open.
void CloseAllBut(int connection) {
  std::vector<int> open;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) open.push_back(std::stoi(entry.path().filename()));
  for (const int fd : open)
    if (fd > STDERR_FILENO && fd != connection) ::close(fd);
}

// In the child.
[[noreturn]] void RunSession(int connection, const fs::path& folder) {
  try {
    CloseAllBut(connection);
    RegisterFunctions(folder);
    ffi::Function::GetGlobalRequired("rpc.ServerLoop")(connection);
  } catch (const std::exception& error) {
    Say(std::string("session: ") + error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status))
    return std::string(::strsignal(WTERMSIG(status))) + (WTERMSIG(status) == SIGKILL ? ", perhaps for want of memory" : "");
  return WEXITSTATUS(status) == 0 ? "the client left" : "failed";
}

// All of a process group, or, if there is no group yet, the process.
void KillAll(pid_t child) {
  if (::kill(-child, SIGKILL) != 0) ::kill(child, SIGKILL);
}

}  // namespace

Session::Session(UniqueFd connection, const std::string& work_dir, Limits limits, const sigset_t& signals)
    : connection_(std::move(connection)),
      folder_((fs::absolute(work_dir) / "flexcomp-session-XXXXXX").string()),
      limits_(limits),
      over_at_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds))) {
  if (::mkdtemp(folder_.data()) == nullptr) FailSystem("cannot make a folder in " + work_dir);
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent ended meanwhile
    ::setpgid(0, 0);                        // its children end, too
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);
    RunSession(connection_.get(), folder_);
  }
  if (child_ > 0) return;
  const int error = errno;
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  errno = error;
  FailSystem("cannot make a process for a session");
}

Session::~Session() {
  if (!reaped_) {
    KillAll(child_);
    for (int tries = 0; tries < 100 && ::waitpid(child_, nullptr, WNOHANG) == 0; ++tries) ::usleep(10'000);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Session::Kill(std::string why) {
  if (lost_at_) return;
  KillAll(child_);
  why_ = std::move(why);
  lost_at_ = Clock::now() + limits_.patience;
}

std::optional<std::string> Session::Attend(const pollfd& polled) {
  int status = 0;
  while (::waitpid(child_, &status, WNOHANG | WUNTRACED | WCONTINUED) == child_) {
    if (WIFSTOPPED(status)) {
      stopped_until_ = Clock::now() + limits_.patience;
    } else if (WIFCONTINUED(status)) {
      stopped_until_.reset();
    } else {
      reaped_ = true;
      ::kill(-child_, SIGKILL);  // its children
      return why_.empty() ? HowItEnded(status) : why_;
    }
  }
  if (polled.revents != 0 && !gone_) {
    gone_ = true;
    idle_until_ = Clock::now() + limits_.patience;  // to finish the current work
  }
  const auto now = Clock::now();
  if (now >= over_at_) Kill("its time was over");
  if (idle_until_ && now >= *idle_until_) Kill("the client left, and it did not end");
  if (stopped_until_ && now >= *stopped_until_) Kill("it was stopped");
  if (lost_at_ && now >= *lost_at_) return why_ + ", and cannot be killed";
  return std::nullopt;
}

Clock::time_point Session::until() const {
  if (lost_at_) return *lost_at_;
  return std::min({over_at_, idle_until_.value_or(over_at_), stopped_until_.value_or(over_at_)});
}

}  // namespace flexcomp::server

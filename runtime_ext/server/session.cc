#include "session.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <chrono>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>

namespace flexcomp::server {
namespace {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;

[[noreturn]] void Fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// What TVM's side of the protocol expects of a server; all else is in libtvm_runtime.
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

// In the child.
[[noreturn]] void RunSession(int connection, const fs::path& folder) {
  try {
    RegisterFunctions(folder);
    ffi::Function::GetGlobalRequired("rpc.ServerLoop")(connection);
  } catch (const std::exception& error) {
    std::cout << "session: " << error.what() << std::endl;
    ::_exit(1);
  }
  ::_exit(0);
}

// Signals wait while a session runs: they must find its folder removed.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&held_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&held_, signal);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { Release(); }
  void Release() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  // SIGCHLD, or what asks this process to end, or 0 when the time is over.
  int Wait(double seconds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (true) {
      const double left = std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
      if (left <= 0) return 0;
      const timespec limit{static_cast<time_t>(left), static_cast<long>((left - std::floor(left)) * 1e9)};
      if (const int signal = ::sigtimedwait(&held_, nullptr, &limit); signal > 0) return signal;
    }
  }

 private:
  sigset_t held_, before_;
};

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status))
    return std::string(::strsignal(WTERMSIG(status))) + (WTERMSIG(status) == SIGKILL ? ", perhaps for want of memory" : "");
  return WEXITSTATUS(status) == 0 ? "the client left" : "failed";
}

}  // namespace

std::string Serve(UniqueFd connection, const std::string& work_dir, double seconds) {
  std::string name = (fs::absolute(work_dir) / "flexcomp-session-XXXXXX").string();
  const HeldSignals signals;
  if (::mkdtemp(name.data()) == nullptr) Fail("cannot make a folder in " + work_dir);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it ended meanwhile
    signals.Release();
    RunSession(connection.get(), name);
  }
  connection = UniqueFd();  // the child's alone: when it ends, the client sees that
  std::string ended;
  int status = 0, signal = 0;
  if (child < 0) {
    ended = "cannot make a process for it";
  } else {
    // A child of an earlier session cannot have left a SIGCHLD: it was waited for.
    signal = signals.Wait(seconds > 0 ? seconds : 1e9);
    if (signal != SIGCHLD) ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ended = signal == 0 ? "its time was over" : signal != SIGCHLD ? "the server was ended" : HowItEnded(status);
  }
  std::error_code ignored;
  fs::remove_all(name, ignored);
  if (signal > 0 && signal != SIGCHLD) ::raise(signal);  // delivered when the signals are released
  return ended;
}

}  // namespace flexcomp::server

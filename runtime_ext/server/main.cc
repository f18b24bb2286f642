// flexcomp-rpc-server: serves a device to clients of TVM's RPC, with libtvm_runtime and nothing else of TVM.
//
// The protocol of calls is libtvm_runtime's own (`rpc.ServerLoop`). This is the part before it: one loop that waits for
// new clients, for clients in the middle of their greeting (`door.h`), for the session, which is a process
// (`session.h`), and for signals. The loop never waits for one of these alone. With a tracker every client is expected
// to name a new key.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <vector>

#include "door.h"
#include "handshake.h"
#include "net.h"
#include "options.h"
#include "say.h"
#include "session.h"
#include "tracker.h"

namespace flexcomp::server {
namespace {

constexpr std::chrono::seconds kAskTracker{2}, kTrackerRest{1};

// Signals that are read, one after the other, instead of interrupting: a session's folder must be removed before a
// signal acts.
class Signals {
 public:
  Signals() {
    ::signal(SIGPIPE, SIG_IGN);  // the reader of the log may go away
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&wanted, signal);
    ::sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_ = UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_.get() < 0) throw std::system_error(errno, std::generic_category(), "cannot wait for signals");
  }
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

  // One that asks this process to end, if there is one.
  std::optional<int> Ending() const {
    signalfd_siginfo info;
    while (::read(fd_.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
    return std::nullopt;
  }

  // As if the signal had not been held back.
  void Obey(int signal) const {
    ::raise(signal);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
  UniqueFd fd_;
};

class Server {
 public:
  explicit Server(const Options& options) : options_(options) {
    Listener listener = Listen(options.host, options.port, options.port_end);
    port_ = listener.port;
    const bool tracked = !options.tracker_host.empty();
    if (tracked && listener.loopback && options.custom_address.empty() && !IsLoopback(options.tracker_host))
      throw UsageError("clients of a tracker on another machine cannot reach " + options.host + ": add --host 0.0.0.0, or --custom-address");
    Say("listening on " + options.host + ":" + std::to_string(port_));
    if (!listener.loopback && (tracked || options.key.empty()))
      Say(std::string("warning: whoever reaches ") + (tracked ? "the tracker" : "this port") + " may do here what this user may: use it in a trusted network" +
          (tracked ? "" : ", or with --key"));
    door_.emplace(std::move(listener.fd), Duration(options.patience));
    if (tracked) tracker_.emplace(options.tracker_host, options.tracker_port, options.key, options.custom_address);
    else door_->Expect(options.key);
  }

  // Until a signal asks for the end, which is returned.
  int Run() {
    while (true) {
      if (!session_) Offer();
      std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}, session_ ? session_->Watch() : pollfd{-1, 0, 0}};
      door_->Watch(polled);
      ::poll(polled.data(), polled.size(), MillisecondsUntil(NextTime()));
      if (const auto signal = signals_.Ending()) {
        session_.reset();
        return *signal;
      }
      if (session_)
        if (const auto end = session_->Attend(polled[1])) {
          session_.reset();
          Say("the session ended: " + *end);
        }
      door_->Attend(std::span(polled).subspan(2));
      if (!session_) Begin();
    }
  }
  void Obey(int signal) const { signals_.Obey(signal); }

 private:
  static Clock::duration Duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  Clock::time_point NextTime() const {
    Clock::time_point next = door_->until();
    if (session_) next = std::min(next, session_->until());
    if (tracker_ && !session_) next = std::min(next, ask_at_);
    return next;
  }

  // Says to the tracker, if there is one, that the server is free.
  void Offer() {
    if (!tracker_ || Clock::now() < ask_at_) return;
    try {
      if (!offered_ || !tracker_->StillOffered()) door_->Expect(offered_ = tracker_->Offer(port_));
      ask_at_ = Clock::now() + kAskTracker;
      last_trouble_.clear();
    } catch (const NetworkError& error) {
      Withdraw();
      tracker_->Disconnect();
      Rest(error.what());
    }
  }

  void Withdraw() {
    offered_.reset();
    if (tracker_) door_->Expect(std::nullopt);
  }

  void Rest(const std::string& trouble) {
    ask_at_ = Clock::now() + kTrackerRest;
    if (trouble != last_trouble_) Say(last_trouble_ = trouble);
  }

  // Begins a session with a waiting client.
  void Begin() {
    while (std::optional<Door::Guest> guest = door_->Next()) {
      const int fd = guest->connection.get();
      Withdraw();
      ask_at_ = Clock::now();
      if (!SendNow(fd, Welcome(options_.key))) continue;
      LetBlock(fd);
      KeepAlive(fd);
      const double seconds = guest->seconds > 0 ? std::min(guest->seconds, options_.session_limit) : options_.session_limit;
      try {
        session_.emplace(std::move(guest->connection), options_.work_dir, Session::Limits{seconds, Duration(options_.patience)}, signals_.before());
        Say("a session begins");
        return;
      } catch (const std::system_error& error) {  // there is no room for the session
        Rest(error.what());
      }
    }
  }

  Options options_;
  Signals signals_;
  int port_ = 0;
  std::optional<Door> door_;
  std::optional<Tracker> tracker_;
  std::optional<std::string> offered_;
  Clock::time_point ask_at_{};
  std::string last_trouble_;
  std::optional<Session> session_;
};

}  // namespace
}  // namespace flexcomp::server

int main(int argc, char** argv) {
  using namespace flexcomp::server;
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::cout << kUsage;
    return 0;
  }
  try {
    Server server(ParseOptions(argc, argv));
    server.Obey(server.Run());
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\n\n"
              << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 4;
  }
}

// flexcomp-rpc-server: serves a device to clients of TVM's RPC, with libtvm_runtime and nothing else of TVM.
//
// The protocol of calls is libtvm_runtime's own (`rpc.ServerLoop`). Here are what comes before it, as in
// tvm/rpc/server.py: a client sends kMagic and "client:KEY [-timeout=SECONDS]", and is answered with kMagic and
// "server:KEY", or with kMismatch. Behind a tracker KEY is a new one for each client.
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "net.h"
#include "session.h"
#include "tracker.h"

namespace flexcomp::server {
namespace {

constexpr char kUsage[] = R"(flexcomp-rpc-server [options]

  --host H               the address to listen on (default 0.0.0.0: all)
  --port N               the first port to try (default 9090; 0: any)
  --port-end N           the last one (default: --port + 9)
  --tracker HOST:PORT    a TVM RPC tracker to report to
  --key K                what this kind of device is called there
  --custom-address A     the address to report, if the tracker sees another one
  --work-dir DIR         where sessions keep their files (default: here); it decides which storage is measured

Serves one client after the other, for as long as it runs, with all rights of its user: run it in trusted networks only.
)";

constexpr int32_t kMagic = 0xff271, kMismatch = kMagic + 2;
constexpr int kHandshakeSeconds = 10, kPollMs = 2000;

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::string host = "0.0.0.0", tracker_host, key, custom_address, work_dir = ".";
  int port = 9090, port_end = -1, tracker_port = 0;
};

int PortNumber(const std::string& text) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(text) > 65535)
    throw UsageError("\"" + text + "\" is no port");
  return std::stoi(text);
}

// A word that needs no quoting in the tracker's JSON.
std::string Plain(const std::string& text) {
  if (text.empty() || text.find_first_of("\" \\\t\n") != std::string::npos)
    throw UsageError("\"" + text + "\" must not be empty or hold quotes, spaces or backslashes");
  return text;
}

Arguments Parse(int argc, char** argv) {
  Arguments parsed;
  const std::map<std::string, std::function<void(const std::string&)>> options = {
      {"--host", [&](const std::string& text) { parsed.host = text; }},
      {"--port", [&](const std::string& text) { parsed.port = PortNumber(text); }},
      {"--port-end", [&](const std::string& text) { parsed.port_end = PortNumber(text); }},
      {"--tracker",
       [&](const std::string& text) {
         const size_t colon = text.rfind(':');
         if (colon == std::string::npos) throw UsageError("--tracker takes HOST:PORT, not \"" + text + "\"");
         parsed.tracker_host = Plain(text.substr(0, colon));
         parsed.tracker_port = PortNumber(text.substr(colon + 1));
       }},
      {"--key", [&](const std::string& text) { parsed.key = Plain(text); }},
      {"--custom-address", [&](const std::string& text) { parsed.custom_address = Plain(text); }},
      {"--work-dir", [&](const std::string& text) { parsed.work_dir = text; }},
  };
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    const auto equals = name.find('=');
    const auto found = options.find(name.substr(0, equals));
    if (found == options.end()) throw UsageError("there is no option " + name);
    if (equals == std::string::npos && i + 1 == argc) throw UsageError(name + " takes a value");
    found->second(equals == std::string::npos ? argv[++i] : name.substr(equals + 1));
  }
  if (!parsed.tracker_host.empty() && parsed.key.empty()) throw UsageError("--tracker needs a --key");
  if (!std::filesystem::is_directory(parsed.work_dir)) throw UsageError("there is no folder " + parsed.work_dir);
  if (parsed.port_end < 0) parsed.port_end = parsed.port == 0 ? 0 : parsed.port + 9;
  return parsed;
}

void Say(const std::string& text) { std::cout << text << std::endl; }

struct Client {
  UniqueFd connection;
  double seconds = 0;  // that its session may take; 0: any
};

// The client that waits at the door, if it is one of TVM's and names the key.
std::optional<Client> Greet(int listener, const std::string& key, const std::string& server_key) {
  Client client{UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC))};
  const int fd = client.connection.get();
  if (fd < 0) return std::nullopt;
  try {
    LimitSilence(fd, kHandshakeSeconds);
    if (ReceiveNumber(fd) != kMagic) return std::nullopt;
    std::istringstream words(ReceiveText(fd));
    std::string named, option;
    words >> named;
    if (named != "client:" + key) {
      SendNumber(fd, kMismatch);
      Say("a client came with another key");
      return std::nullopt;
    }
    const std::string timeout = "-timeout=";
    while (words >> option)
      if (option.starts_with(timeout)) client.seconds = std::strtod(option.c_str() + timeout.size(), nullptr);
    SendNumber(fd, kMagic);
    SendText(fd, "server:" + server_key);
    LimitSilence(fd, 0);
  } catch (const NetworkError& error) {
    Say(std::string("a client: ") + error.what());
    return std::nullopt;
  }
  return client;
}

Client Await(int listener, int port, const std::string& key, Tracker* tracker) {
  while (true) {
    const std::string expected = tracker != nullptr ? tracker->Offer(port) : key;
    do {
      if (!WaitReadable(listener, kPollMs)) continue;
      if (std::optional<Client> client = Greet(listener, expected, key)) return std::move(*client);
    } while (tracker == nullptr || tracker->StillOffered());
  }
}

[[noreturn]] void Run(const Arguments& arguments) {
  const Listener listener = Listen(arguments.host, arguments.port, arguments.port_end);
  Say("listening on " + arguments.host + ":" + std::to_string(listener.port));
  std::optional<Tracker> tracker;
  if (!arguments.tracker_host.empty())
    tracker.emplace(arguments.tracker_host, arguments.tracker_port, arguments.key, arguments.custom_address);
  std::string last_trouble;
  while (true) {
    try {
      Client client = Await(listener.fd.get(), listener.port, arguments.key, tracker ? &*tracker : nullptr);
      last_trouble.clear();
      Say("a session begins");
      Say("the session ended: " + Serve(std::move(client.connection), arguments.work_dir, client.seconds));
    } catch (const std::exception& error) {  // the tracker is away, or there is no room for a session
      if (tracker) tracker->Disconnect();
      if (error.what() != last_trouble) Say(last_trouble = error.what());
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }
}

}  // namespace
}  // namespace flexcomp::server

int main(int argc, char** argv) {
  using namespace flexcomp::server;
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::cout << kUsage;
    return 0;
  }
  try {
    Run(Parse(argc, argv));
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\n\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 4;
  }
}

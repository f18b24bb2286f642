#include "options.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

namespace flexcomp::server {

const char kUsage[] = R"(flexcomp-rpc-server [options]

  --host H               the address to listen on (default 127.0.0.1: this machine only; 0.0.0.0: all)
  --port N               the first port to try (default 9090; 0: any)
  --port-end N           the last one (default: --port + 9)
  --key K                what clients must name; behind a tracker, what this kind of device is called there
  --key-file FILE        the same, from a file: other users of this machine see command lines
  --tracker HOST:PORT    a TVM RPC tracker to report to
  --custom-address A     the address to report, if the tracker sees another one
  --work-dir DIR         where sessions keep their files (default: here); it decides which storage is measured
  --session-limit S      the seconds that a session may take at most (default 86400), less if its client says so
  --patience S           the seconds a client has to say who it is, and a session that is stopped or has lost its
                         client to end (default 10)

Serves one client after the other, for as long as it runs. A client may do what this server's user may. The key keeps
others out, but travels unencrypted; a tracker gives everybody who asks it the way in. Use both in trusted networks only.
)";

namespace {

constexpr double kMostSeconds = 30 * 86400.0;

int PortNumber(const std::string& text) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(text) > 65535)
    throw UsageError("\"" + text + "\" is no port");
  return std::stoi(text);
}

double Seconds(const std::string& text) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || stop != text.data() + text.size() || !(seconds > 0 && seconds <= kMostSeconds))
    throw UsageError("\"" + text + "\" is no number of seconds up to " + std::to_string(static_cast<int>(kMostSeconds)));
  return seconds;
}

// A word that needs no quoting in the tracker's JSON.
std::string Plain(const std::string& text) {
  if (text.empty() || text.find_first_of("\" \\\t\r\n") != std::string::npos)
    throw UsageError("\"" + text + "\" must not be empty or hold quotes, spaces or backslashes");
  return text;
}

std::string Key(const std::string& text) {
  constexpr size_t kLongest = 256;
  if (text.size() > kLongest) throw UsageError("a key has at most " + std::to_string(kLongest) + " bytes");
  return Plain(text);
}

std::string KeyIn(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw UsageError("there is no key in " + path);
  return Key(line);
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options parsed;
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
      {"--key", [&](const std::string& text) { parsed.key = Key(text); }},
      {"--key-file", [&](const std::string& text) { parsed.key = KeyIn(text); }},
      {"--custom-address", [&](const std::string& text) { parsed.custom_address = Plain(text); }},
      {"--work-dir", [&](const std::string& text) { parsed.work_dir = text; }},
      {"--session-limit", [&](const std::string& text) { parsed.session_limit = Seconds(text); }},
      {"--patience", [&](const std::string& text) { parsed.patience = Seconds(text); }},
  };
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
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

}  // namespace flexcomp::server

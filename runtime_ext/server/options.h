// The server's command line.
#pragma once

#include <stdexcept>
#include <string>

namespace flexcomp::server {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string host = "127.0.0.1", tracker_host, key, custom_address, work_dir = ".";
  int port = 9090, port_end = -1, tracker_port = 0;
  double session_limit = 86400, patience = 10;  // seconds
};

extern const char kUsage[];

// Throws UsageError.
Options ParseOptions(int argc, char** argv);

}  // namespace flexcomp::server

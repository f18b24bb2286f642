// TCP as TVM's RPC uses it: numbers are 32 bits in the machine's byte order, texts are their length and their bytes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "../src/unique_fd.h"

namespace flexcomp::server {

struct NetworkError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A listening socket, and the port it got.
struct Listener {
  UniqueFd fd;
  int port = 0;
};

// Listens on the first free port from `first` to `last`; port 0 is any free one. Throws NetworkError.
Listener Listen(const std::string& host, int first, int last);

UniqueFd Connect(const std::string& host, int port);

// After `seconds` of silence reading fails; 0: never.
void LimitSilence(int fd, int seconds);

bool WaitReadable(int fd, int milliseconds);

void SendNumber(int fd, int32_t number);
void SendText(int fd, const std::string& text);
int32_t ReceiveNumber(int fd);
std::string ReceiveText(int fd);  // refuses more than 64 KiB

}  // namespace flexcomp::server

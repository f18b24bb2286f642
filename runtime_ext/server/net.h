// TCP as TVM's RPC uses it: numbers are 32 bits in the machine's byte order, texts are their length and their bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "../src/base/unique_fd.h"

namespace flexcomp::server {

using Clock = std::chrono::steady_clock;

struct NetworkError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A listening socket, which never blocks, and its address.
struct Listener {
  UniqueFd fd;
  int port = 0;
  bool loopback = false;  // only this machine reaches the socket
};

// Listens on the first free port from `first` to `last`; port 0 is any free one. Throws NetworkError.
Listener Listen(const std::string& host, int first, int last);

// Whether `host` names this machine's loopback, and nothing else.
bool IsLoopback(const std::string& host);

// A conversation on a socket that must end by `until`, whatever the other side does: Throws NetworkError otherwise.
UniqueFd Connect(const std::string& host, int port, Clock::time_point until);
void SendNumber(int fd, int32_t number, Clock::time_point until);
void SendText(int fd, const std::string& text, Clock::time_point until);
int32_t ReceiveNumber(int fd, Clock::time_point until);
std::string ReceiveText(int fd, Clock::time_point until);  // refuses more than 64 KiB

// Whether all bytes went at once, into the system's buffer.
bool SendNow(int fd, const std::string& bytes);

// For a connection that is left alone from now on: a peer that vanishes without a word is noticed within a minute.
void KeepAlive(int fd);
void LetBlock(int fd);

// Milliseconds for poll, rounded up; 0 if the time is over.
int MillisecondsUntil(Clock::time_point time);

}  // namespace flexcomp::server

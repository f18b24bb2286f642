#include "net.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace flexcomp::server {
namespace {

constexpr int32_t kLongestText = 1 << 16;

[[noreturn]] void Fail(const std::string& what) { throw NetworkError(what + ": " + std::strerror(errno)); }

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) throw NetworkError("cannot find " + host + ": " + ::gai_strerror(code));
  return {found, &::freeaddrinfo};
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char port[NI_MAXSERV];
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(fd, generic, &size) != 0) Fail("getsockname");
  ::getnameinfo(generic, size, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  return std::stoi(port);
}

void SendAll(int fd, const void* data, size_t nbytes) {
  for (auto* at = static_cast<const char*>(data); nbytes > 0;) {
    const ssize_t sent = ::send(fd, at, nbytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) Fail("cannot send");
    at += sent, nbytes -= static_cast<size_t>(sent);
  }
}

void ReceiveAll(int fd, void* data, size_t nbytes) {
  for (auto* at = static_cast<char*>(data); nbytes > 0;) {
    const ssize_t received = ::recv(fd, at, nbytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received == 0) throw NetworkError("the other side has closed the connection");
    if (received < 0) Fail("cannot receive");
    at += received, nbytes -= static_cast<size_t>(received);
  }
}

}  // namespace

Listener Listen(const std::string& host, int first, int last) {
  for (int port = first; port <= std::max(first, last); ++port) {
    const Addresses addresses = Resolve(host, port, AI_PASSIVE | AI_NUMERICSERV);
    UniqueFd fd(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) Fail("cannot make a socket");
    const int yes = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    // Two servers that start at once may both bind a port; only one of them can listen on it.
    if (::bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) == 0 && ::listen(fd.get(), 8) == 0) {
      const int bound = PortOf(fd.get());
      return {std::move(fd), bound};
    }
    if (errno != EADDRINUSE) Fail("cannot listen on " + host + ":" + std::to_string(port));
  }
  throw NetworkError("no port from " + std::to_string(first) + " to " + std::to_string(last) + " is free");
}

UniqueFd Connect(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, AI_NUMERICSERV);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() >= 0 && ::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
  }
  Fail("cannot connect to " + host + ":" + std::to_string(port));
}

void LimitSilence(int fd, int seconds) {
  const timeval limit{seconds, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

bool WaitReadable(int fd, int milliseconds) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, milliseconds) > 0;
}

void SendNumber(int fd, int32_t number) { SendAll(fd, &number, sizeof number); }

void SendText(int fd, const std::string& text) {
  SendNumber(fd, static_cast<int32_t>(text.size()));
  SendAll(fd, text.data(), text.size());
}

int32_t ReceiveNumber(int fd) {
  int32_t number;
  ReceiveAll(fd, &number, sizeof number);
  return number;
}

std::string ReceiveText(int fd) {
  const int32_t size = ReceiveNumber(fd);
  if (size < 0 || size > kLongestText) throw NetworkError("a text of " + std::to_string(size) + " bytes was announced");
  std::string text(static_cast<size_t>(size), '\0');
  ReceiveAll(fd, text.data(), text.size());
  return text;
}

}  // namespace flexcomp::server

#include "net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace flexcomp::server {
namespace {

constexpr int32_t kLongestText = 1 << 16;
constexpr int kBacklog = 64;
// A peer is asked after half a minute of silence, three times, ten seconds apart; sent bytes must be taken within a
// minute.
constexpr int kIdleSeconds = 30, kIntervalSeconds = 10, kProbes = 3, kTakenMs = 60'000;

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

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Until the socket can be read or written. Throws NetworkError if that is not before `until`.
void Await(int fd, short event, Clock::time_point until) {
  pollfd wanted{fd, event, 0};
  while (true) {
    const int milliseconds = MillisecondsUntil(until);
    const int ready = ::poll(&wanted, 1, milliseconds);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) Fail("cannot wait");
    if (milliseconds == 0) throw NetworkError("the other side is silent");
  }
}

void SendAll(int fd, const void* data, size_t nbytes, Clock::time_point until) {
  for (auto* at = static_cast<const char*>(data); nbytes > 0;) {
    Await(fd, POLLOUT, until);
    const ssize_t sent = ::send(fd, at, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) Fail("cannot send");
    at += sent, nbytes -= static_cast<size_t>(sent);
  }
}

void ReceiveAll(int fd, void* data, size_t nbytes, Clock::time_point until) {
  for (auto* at = static_cast<char*>(data); nbytes > 0;) {
    Await(fd, POLLIN, until);
    const ssize_t received = ::recv(fd, at, nbytes, MSG_DONTWAIT);
    if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (received == 0) throw NetworkError("the other side has closed the connection");
    if (received < 0) Fail("cannot receive");
    at += received, nbytes -= static_cast<size_t>(received);
  }
}

}  // namespace

int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

Listener Listen(const std::string& host, int first, int last) {
  for (int port = first; port <= std::max(first, last); ++port) {
    const Addresses addresses = Resolve(host, port, AI_PASSIVE | AI_NUMERICSERV);
    UniqueFd fd(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) Fail("cannot make a socket");
    const int yes = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    // Two servers that start at once may both bind a port; only one of them can listen there.
    if (::bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) == 0 && ::listen(fd.get(), kBacklog) == 0) {
      const int bound = PortOf(fd.get());
      return {std::move(fd), bound, IsLoopback(addresses->ai_addr)};
    }
    if (errno != EADDRINUSE) Fail("cannot listen on " + host + ":" + std::to_string(port));
  }
  throw NetworkError("no port from " + std::to_string(first) + " to " + std::to_string(last) + " is free");
}

bool IsLoopback(const std::string& host) {
  const Addresses addresses = Resolve(host, 0, AI_NUMERICSERV);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next)
    if (!IsLoopback(one->ai_addr)) return false;
  return true;
}

UniqueFd Connect(const std::string& host, int port, Clock::time_point until) {
  const Addresses addresses = Resolve(host, port, AI_NUMERICSERV);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) continue;
    if (::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
    if (errno != EINPROGRESS) continue;
    Await(fd.get(), POLLOUT, until);
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return fd;
    errno = error;
  }
  Fail("cannot connect to " + host + ":" + std::to_string(port));
}

void SendNumber(int fd, int32_t number, Clock::time_point until) { SendAll(fd, &number, sizeof number, until); }

void SendText(int fd, const std::string& text, Clock::time_point until) {
  SendNumber(fd, static_cast<int32_t>(text.size()), until);
  SendAll(fd, text.data(), text.size(), until);
}

int32_t ReceiveNumber(int fd, Clock::time_point until) {
  int32_t number;
  ReceiveAll(fd, &number, sizeof number, until);
  return number;
}

std::string ReceiveText(int fd, Clock::time_point until) {
  const int32_t size = ReceiveNumber(fd, until);
  if (size < 0 || size > kLongestText) throw NetworkError("a text of " + std::to_string(size) + " bytes was announced");
  std::string text(static_cast<size_t>(size), '\0');
  ReceiveAll(fd, text.data(), text.size(), until);
  return text;
}

bool SendNow(int fd, const std::string& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

void KeepAlive(int fd) {
  const int yes = 1;
  const unsigned taken = kTakenMs;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kIntervalSeconds, sizeof kIntervalSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &taken, sizeof taken);
}

void LetBlock(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

}  // namespace flexcomp::server

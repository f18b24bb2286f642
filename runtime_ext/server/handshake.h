// The greeting of a client of TVM's RPC, as in tvm/rpc/server.py: kMagic, then the length and the text of "client:KEY
// [-timeout=SECONDS]"; the answer is kMagic and "server:KEY", or kMismatch. Numbers are 32 bits in the machine's byte
// order. Bytes in, values out: there are no sockets here, and no clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flexcomp::server {

constexpr int32_t kMagic = 0xff271, kMismatch = kMagic + 2;
constexpr size_t kLongestGreeting = 1024;  // bytes in all

struct Greeting {
  enum State {
    kUnfinished,
    kComplete,
    kMalformed
  };

  State state = kUnfinished;
  size_t wanted = 0;    // bytes from the start: needed to read on, or, for a complete greeting, its size
  std::string key;      // of a complete greeting
  double seconds = 0;   // that the session may take, finite and positive; 0: the client does not say
  std::string trouble;  // of a malformed greeting
};

// Reads as much of a greeting as there is. Bytes after `wanted` are not looked at.
Greeting ReadGreeting(std::string_view bytes);

// The answer to a client with the right key, and to others.
std::string Welcome(const std::string& key);
std::string Refusal();

// Takes as long for every `given` of the same length.
bool SameKey(std::string_view given, std::string_view right);

}  // namespace flexcomp::server

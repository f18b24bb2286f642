// libFuzzer on what the RPC server reads from strangers before it knows them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "handshake.h"

namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using flexcomp::server::Greeting;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // As it arrives: what is wanted next is all that is ever read, and it ends.
  size_t have = 0;
  for (int turns = 0;; ++turns) {
    Require(turns < 4, "a greeting has no end");
    const Greeting greeting = flexcomp::server::ReadGreeting(bytes.substr(0, have));
    if (greeting.state == Greeting::kMalformed) {
      Require(!greeting.trouble.empty(), "nobody is told why");
      break;
    }
    Require(greeting.wanted <= flexcomp::server::kLongestGreeting, "it wants too much");
    if (greeting.state == Greeting::kComplete) {
      Require(greeting.wanted <= have, "it is complete before it is there");
      Require(std::isfinite(greeting.seconds) && greeting.seconds >= 0, "a time that is none");
      Require(greeting.key.size() <= greeting.wanted, "a key from nowhere");
      (void)flexcomp::server::SameKey(greeting.key, "right");
      break;
    }
    Require(greeting.wanted > have, "it does not get on");
    have = greeting.wanted;
    if (have > size) break;
  }
  return 0;
}

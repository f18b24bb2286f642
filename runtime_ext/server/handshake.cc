#include "handshake.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace flexcomp::server {
namespace {

constexpr size_t kNumber = sizeof(int32_t);
constexpr std::string_view kClient = "client:", kTimeout = "-timeout=", kSpaces = " \t\n\r";

int32_t NumberAt(std::string_view bytes, size_t at) {
  int32_t number;
  std::memcpy(&number, bytes.data() + at, kNumber);
  return number;
}

void Append(std::string& bytes, int32_t number) { bytes.append(reinterpret_cast<const char*>(&number), kNumber); }

Greeting Malformed(std::string trouble) {
  Greeting greeting;
  greeting.state = Greeting::kMalformed;
  greeting.trouble = std::move(trouble);
  return greeting;
}

Greeting Unfinished(size_t wanted) {
  Greeting greeting;
  greeting.wanted = wanted;
  return greeting;
}

// Takes the first word off `text`; empty: there is none.
std::string_view NextWord(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kSpaces));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

Greeting ReadGreeting(std::string_view bytes) {
  if (bytes.size() < kNumber) return Unfinished(kNumber);
  if (NumberAt(bytes, 0) != kMagic) return Malformed("it does not speak TVM's RPC");
  if (bytes.size() < 2 * kNumber) return Unfinished(2 * kNumber);
  const int32_t length = NumberAt(bytes, kNumber);
  if (length < 0 || static_cast<size_t>(length) > kLongestGreeting - 2 * kNumber)
    return Malformed("it announced a text of " + std::to_string(length) + " bytes");
  const size_t end = 2 * kNumber + static_cast<size_t>(length);
  if (bytes.size() < end) return Unfinished(end);

  std::string_view text = bytes.substr(2 * kNumber, static_cast<size_t>(length));
  const std::string_view name = NextWord(text);
  if (!name.starts_with(kClient)) return Malformed("it is no client");
  Greeting greeting;
  greeting.state = Greeting::kComplete;
  greeting.wanted = end;
  greeting.key = name.substr(kClient.size());
  for (std::string_view word = NextWord(text); !word.empty(); word = NextWord(text)) {
    if (!word.starts_with(kTimeout)) continue;
    const std::string_view number = word.substr(kTimeout.size());
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), greeting.seconds);
    if (error != std::errc() || stop != number.data() + number.size() || !std::isfinite(greeting.seconds) || greeting.seconds <= 0)
      return Malformed("the time that it asked for is no positive number of seconds");
  }
  return greeting;
}

std::string Welcome(const std::string& key) {
  const std::string text = "server:" + key;
  std::string bytes;
  Append(bytes, kMagic);
  Append(bytes, static_cast<int32_t>(text.size()));
  return bytes + text;
}

std::string Refusal() {
  std::string bytes;
  Append(bytes, kMismatch);
  return bytes;
}

bool SameKey(std::string_view given, std::string_view right) {
  unsigned char differ = given.size() != right.size();
  for (size_t i = 0; i < given.size(); ++i) differ |= static_cast<unsigned char>(given[i] ^ (i < right.size() ? right[i] : 0));
  return differ == 0;
}

}  // namespace flexcomp::server

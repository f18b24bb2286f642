// Copies that helpers take part in: every byte arrives once, errors are told, and a copy is over when it says so.
//
// shared_copy [ROUNDS]
#include "storage/shared_copy.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

using flexcomp::kPage;
using flexcomp::SharedCopy;

namespace {

constexpr size_t kLargest = 300 * kPage;
constexpr uint64_t kBad = 7 * kPage;  // a part that holds this offset fails

std::vector<std::byte> file(kLargest + 64 * kPage);
std::vector<std::byte> arena(kLargest);
std::atomic<uint64_t> calls{0}, inside{0}, helped{0};
std::atomic<bool> stop{false};

int Read(uint64_t offset, std::byte* target, size_t nbytes) {
  ++inside;
  ++calls;
  std::memcpy(target, file.data() + offset, nbytes);
  const bool bad = offset <= kBad && kBad < offset + nbytes;
  --inside;
  return bad ? 5 : 0;
}

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

}  // namespace

int main(int count, char** args) {
  const int rounds = count > 1 ? std::atoi(args[1]) : 3000;
  std::minstd_rand random(1);
  for (std::byte& byte : file) byte = static_cast<std::byte>(random());
  SharedCopy copy;
  std::vector<std::thread> helpers;
  for (int i = 0; i < 2; ++i)
    helpers.emplace_back([&] {
      while (!stop)
        if (copy.Help(Read)) ++helped;
    });
  for (int round = 0; round < rounds || (helped == 0 && round < 1000000); ++round) {
    const size_t nbytes = (1 + random() % (kLargest / kPage)) * kPage;
    const uint64_t offset = random() % 64 * kPage;
    std::memset(arena.data(), 0, nbytes);
    const int error = copy.Run(offset, arena.data(), nbytes, Read);
    Require(inside == 0, "a part was still being copied");
    Require(std::memcmp(arena.data(), file.data() + offset, nbytes) == 0, "bytes are missing");
    const bool bad = offset <= kBad && kBad < offset + nbytes;
    Require(error == (bad ? 5 : 0), "the wrong error");
    const uint64_t before = calls;
    Require(!copy.Help(Read) && calls == before, "there was something to do behind the end");
  }
  stop = true;
  for (std::thread& helper : helpers) helper.join();
  std::printf("%llu of %llu\n", static_cast<unsigned long long>(helped), static_cast<unsigned long long>(calls));
  return helped > 0 ? 0 : 1;
}

#include "storage/read_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/pages.h"
#include "program/tape.h"

namespace flexcomp {

std::optional<double> MeasureReadRate(Loader& loader, std::span<std::byte> arena, uint64_t data_nbytes,
                                      uint64_t request_nbytes, uint64_t nbytes) {
  using Clock = std::chrono::steady_clock;
  const uint64_t data = RoundUp(data_nbytes, kPage);
  const uint64_t request = std::min({RoundUp(request_nbytes, kPage), uint64_t{arena.size()}, data});
  // Much is read as many times a little.
  constexpr uint64_t kMostReads = 1 << 14;
  const uint64_t count = RoundUp(std::max(nbytes, request), request) / request;
  std::vector<Operation> reads;
  for (uint64_t number = 0; number < std::min(count, kMostReads); ++number) {
    Operation& read = reads.emplace_back();
    read.from = number % (data / request) * request;
    read.to = number % (arena.size() / request) * request;
    read.nbytes = request;
  }
  const uint64_t passes = RoundUp(count, reads.size()) / reads.size();
  const struct LetGo {  // of the reads, before they are no more
    Loader& loader;
    ~LetGo() {
      loader.GiveUp();
      loader.Open({}, {}, 0);
    }
  } let_go{loader};
  loader.Open({.first = {.operations = reads}, .steady = {.operations = reads}}, Places(arena.data()), arena.size());
  Clock::time_point start;
  for (uint64_t pass = 0; pass <= passes; ++pass) {
    if (pass <= 1) start = Clock::now();  // before the first pass the arena may be fresh: that pass does not count
    loader.Start();
    if (!loader.Finish()) return std::nullopt;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(passes * reads.size() * request) / seconds;
}

}  // namespace flexcomp

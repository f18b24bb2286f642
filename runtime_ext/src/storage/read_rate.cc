#include "storage/read_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "program/program.h"

namespace flexcomp {

std::optional<double> MeasureReadRate(Loader& loader, std::span<std::byte> arena, uint64_t data_nbytes,
                                      uint64_t request_nbytes, uint64_t nbytes) {
  using Clock = std::chrono::steady_clock;
  const uint64_t data = RoundUp(data_nbytes, kPage);
  const uint64_t request = std::min({RoundUp(request_nbytes, kPage), uint64_t{arena.size()}, data});
  // Much is read as many times a little.
  constexpr uint64_t kMostLoads = 1 << 14;
  const uint64_t count = RoundUp(std::max(nbytes, request), request) / request;
  std::vector<Load> loads;
  for (uint64_t number = 0; number < std::min(count, kMostLoads); ++number)
    loads.push_back({number % (data / request) * request, request, number % (arena.size() / request) * request, 0, false, false});
  const uint64_t passes = RoundUp(count, loads.size()) / loads.size();
  const struct LetGo {  // of the loads, before they are no more
    Loader& loader;
    ~LetGo() {
      loader.Abort();
      loader.Open({}, {});
    }
  } let_go{loader};
  loader.Open(loads, Places(arena.data()));
  Clock::time_point start;
  for (uint64_t pass = 0; pass <= passes; ++pass) {
    if (pass <= 1) start = Clock::now();  // before the first pass the arena may be fresh: that pass does not count
    loader.Start({});
    if (!loader.Finish()) return std::nullopt;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(passes * loads.size() * request) / seconds;
}

}  // namespace flexcomp

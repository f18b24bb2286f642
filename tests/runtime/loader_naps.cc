// How often a loader with a core of its own looks whether its read has ended, by a clock that the test sets.
#include <cerrno>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <memory>

#include "storage/loader.h"

namespace {

std::atomic<int64_t> now{1'000'000'000}, jump{0};
std::atomic<int> looks{0};

// Never done before somebody waits for it.
class Source final : public flexcomp::ByteSource {
 public:
  void Begin(uint64_t, std::byte*, size_t) noexcept override {}
  bool Ready() noexcept override { return ++looks, false; }
  int End() noexcept override { return 0; }
  int ReadNow(uint64_t, std::byte*, size_t) noexcept override { return ENOTSUP; }  // loaders do not
  int Check() const noexcept override { return 0; }
  bool direct() const noexcept override { return true; }
  bool queued() const noexcept override { return true; }
};

}  // namespace

// A microsecond later with each look; once, perhaps, much later: the system let others go.
extern "C" int clock_gettime(clockid_t, timespec* time) noexcept {
  const int64_t at = now += 1000 + (looks > 0 ? jump.exchange(0) : 0);
  *time = {static_cast<time_t>(at / 1'000'000'000), static_cast<long>(at % 1'000'000'000)};
  return 0;
}

int main() {
  alignas(4096) static std::byte arena[4096];
  const flexcomp::Operation reads[] = {{.nbytes = 4096}};
  const flexcomp::Tape tape{.operations = reads};
  flexcomp::WeightsFile file("weights", std::make_unique<Source>());
  flexcomp::Loader loader(file, {}, true);
  loader.Open({.first = tape, .steady = tape}, flexcomp::Places(arena), sizeof arena);
  const auto infer = [&](const char* name) {
    looks = 0;
    loader.Start();
    loader.Await(1);
    loader.Computed(1);
    loader.Finish();
    loader.GiveUp();
    std::printf("%s %d\n", name, looks.load());
  };
  infer("undisturbed");
  jump = 10'000'000;
  infer("stopped");
  infer("behind");
  now += 60'000'000;
  infer("later");
}

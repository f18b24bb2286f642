// Who waits for what is being prepared prepares a part of it: a loader whose preparations take long, and a thread that waits.
#include <cerrno>
#include <tvm/ffi/error.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "storage/loader.h"

using flexcomp::Operation;

namespace {

constexpr uint32_t kParts = 16;
constexpr auto kPart = std::chrono::milliseconds(2);

class Source final : public flexcomp::ByteSource {
 public:
  void Begin(uint64_t, std::byte*, size_t) noexcept override {}
  bool Ready() noexcept override { return true; }
  // Later than who waits looks: it sleeps when preparing begins.
  int End() noexcept override { return std::this_thread::sleep_for(std::chrono::milliseconds(20)), 0; }
  int ReadNow(uint64_t, std::byte*, size_t) noexcept override { return ENOTSUP; }  // loaders do not
  int Check() const noexcept override { return 0; }
  bool direct() const noexcept override { return true; }
  bool queued() const noexcept override { return true; }
};

class Slow final : public flexcomp::Preparer {
 public:
  uint32_t PartsOf(const Operation&) const noexcept override { return kParts; }
  int Prepare(const Operation&, uint32_t part) noexcept override {
    (std::this_thread::get_id() == waiting ? helped : loaded) += 1;
    done[part] += 1;
    std::this_thread::sleep_for(kPart);
    if (interrupt_at == part) loader->Interrupt();
    return fail_at == part ? 1 : 0;
  }
  std::string Fault(const Operation&) override { return "as it should"; }

  std::thread::id waiting = std::this_thread::get_id();
  std::atomic<uint32_t> helped{0}, loaded{0}, done[kParts]{};
  uint32_t fail_at = kParts, interrupt_at = kParts;
  flexcomp::Loader* loader = nullptr;
};

}  // namespace

int main() {
  alignas(4096) static std::byte arena[2 * 4096];
  const Operation operations[] = {{.nbytes = 4096},
                                  {.kind = Operation::Kind::kPrepare, .to = 4096, .nbytes = kParts * 64, .from_nbytes = 4096}};
  const flexcomp::Tape tape{.operations = operations};
  flexcomp::WeightsFile file("weights", std::make_unique<Source>());
  flexcomp::Loader loader(file, {}, false);
  Slow slow;
  slow.loader = &loader;
  loader.Open({.first = tape, .steady = tape}, flexcomp::Places(arena), sizeof arena, {}, &slow);

  // `wait`: at once, or when all is prepared.
  const auto infer = [&](const char* name, bool wait) {
    slow.helped = slow.loaded = 0;
    for (auto& part : slow.done) part = 0;
    loader.GoOn();
    loader.EndGivingUp();
    loader.Start();
    std::string end = "interrupted";
    try {
      while (!wait && !loader.Ready(2)) std::this_thread::sleep_for(kPart);
      if (loader.Await(2)) end = "complete";
      loader.Computed(1);
      if (end == "complete") loader.Finish();
    } catch (const tvm::ffi::Error& error) {
      end = error.message();
    }
    if (end != "complete") loader.GiveUp();
    const flexcomp::Loader::Counts& counts = loader.counts();
    uint32_t once = 0;
    for (auto& part : slow.done) once += part == 1;
    std::printf("%s: %u helped, %u loaded, %u once, %d helping, %d preparing, %llu bytes: %s\n", name, slow.helped.load(), slow.loaded.load(),
                once, counts.help_ns > 0, counts.prepare_ns > 0, static_cast<unsigned long long>(counts.prepared_bytes), end.c_str());
  };
  infer("waiting", true);
  infer("computing", false);
  slow.fail_at = 3;
  infer("failing", true);
  slow.fail_at = kParts;
  slow.interrupt_at = 3;
  infer("interrupted", true);
  slow.interrupt_at = kParts;
  infer("again", true);
}

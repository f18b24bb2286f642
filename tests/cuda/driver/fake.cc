// The interface of the GPU for tests: its behaviour from now on, its records, and memory for tensors of callers.
#include "model.h"

using namespace model;
using Lock = std::unique_lock<std::mutex>;

extern "C" {

void FakeSet(const Settings* settings) {
  const Lock lock(device().mutex);
  Device& d = device();
  d.settings = *settings;
  d.calls = 0;
  for (int64_t& waits : d.waits) waits = 0;
  d.called.clear();
  d.peak = d.used;
  d.failed = "";
}
// A process that lost its context would have to end.
void FakeRevive() {
  const Lock lock(device().mutex);
  device().lost = kSuccess;
  device().fault.clear();
}
void FakeLose() {
  const Lock lock(device().mutex);
  device().Lose("told to");
}
int64_t FakeCalls() { return device().calls; }
int64_t FakeWaits(int waiter) { return device().waits[waiter]; }
uint64_t FakeUsed() { return device().used; }
uint64_t FakePeak() { return device().peak; }
const char* FakeFailed() { return device().failed; }
const char* FakeFault() { return device().fault.c_str(); }
int64_t FakeCalled(const char* name) {
  const Lock lock(device().mutex);
  return device().called[name];
}
// "kind: number" of all that was made and not given back.
const char* FakeLive() {
  static thread_local std::string text;
  const Lock lock(device().mutex);
  text.clear();
  for (const auto& [kind, count] : device().live)
    if (count != 0) text += kind + ": " + std::to_string(count) + "; ";
  return text.c_str();
}
// Memory of the device that tensors of a caller lie in.
uint64_t FakeAllocate(size_t nbytes) {
  const Lock lock(device().mutex);
  void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) std::abort();
  std::memset(data, 0xff, nbytes);
  mprotect(data, nbytes, PROT_NONE);
  const auto at = reinterpret_cast<uint64_t>(data);
  device().mapped[at] = {at, nbytes};
  return at;
}
void FakeFree(uint64_t at) {
  Lock lock(device().mutex);
  device().changed.wait(lock, [] { return device().late_writes == 0; });
  munmap(reinterpret_cast<void*>(at), device().mapped[at].nbytes);
  device().mapped.erase(at);
}
void FakeExchange(uint64_t at, void* host, size_t nbytes, bool read) {
  const Lock lock(device().mutex);
  device().Touch([&] { read ? std::memcpy(host, reinterpret_cast<void*>(at), nbytes) : std::memcpy(reinterpret_cast<void*>(at), host, nbytes); });
}
// The caller's own work on the default stream, over after a while.
void FakeWriteLate(uint64_t at, const void* host, size_t nbytes, int delay_us) {
  const Lock lock(device().mutex);
  const auto* bytes = static_cast<const char*>(host);
  ++device().late_writes;
  std::thread([=, taken = std::vector<char>(bytes, bytes + nbytes)] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    const Lock lock(device().mutex);
    device().Touch([&] { std::memcpy(reinterpret_cast<void*>(at), taken.data(), taken.size()); });
    --device().late_writes;
    device().changed.notify_all();
  }).detach();
}

}  // extern "C"

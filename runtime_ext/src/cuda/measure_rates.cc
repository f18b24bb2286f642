#include "cuda/measure_rates.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>

#include "base/error.h"
#include "cuda/pinned_ring.h"

namespace flexcomp::cuda {
namespace {

constexpr int kRounds = 9, kInRow = 256;
constexpr uint64_t kCopied = 1 << 20, kCopiedNbytes = 16 << 20;  // at a time, as the loader does, and in one round

// For the oldest architecture that drivers still compile code of.
constexpr char kNothing[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n";

// A kernel that does nothing.
class Nothing {
 public:
  explicit Nothing(Device& device) : device_(device) {
    device_.Do("cuModuleLoadData", [&](const Driver& driver) { return driver.ModuleLoadData(&module_, kNothing); });
    const Refusal refusal = device_.Try(
        "cuModuleGetFunction", [&](const Driver& driver) { return driver.ModuleGetFunction(&function_, module_, "nothing"); });
    if (refusal) Unload(), device_.Raise(refusal);
  }
  ~Nothing() { Unload(); }
  Nothing(const Nothing&) = delete;
  Nothing& operator=(const Nothing&) = delete;

  void Launch() const {
    device_.Do("cuLaunchKernel", [&](const Driver& driver) {
      return driver.LaunchKernel(function_, 1, 1, 1, 32, 1, 1, 0, device_.compute(), nullptr, nullptr);
    });
  }

 private:
  void Unload() noexcept {
    device_.Settle();
    device_.Insist("cuModuleUnload", [&](const Driver& driver) { return driver.ModuleUnload(module_); });
  }

  Device& device_;
  Module module_ = nullptr;
  Function function_ = nullptr;
};

// An event that is recorded again and again.
class Moment {
 public:
  explicit Moment(Device& device) : device_(device) {
    device_.Do("cuEventCreate", [&](const Driver& driver) { return driver.EventCreate(&event_, kNoTiming); });
  }
  ~Moment() {
    device_.Settle();
    device_.Insist("cuEventDestroy", [&](const Driver& driver) { return driver.EventDestroy(event_); });
  }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  // Later work of `to` runs after the work that `from` was given so far.
  void HandOver(Stream from, Stream to) const {
    device_.Do("cuEventRecord", [&](const Driver& driver) { return driver.EventRecord(event_, from); });
    device_.Do("cuStreamWaitEvent", [&](const Driver& driver) { return driver.StreamWaitEvent(to, event_, 0); });
  }

 private:
  Device& device_;
  Event event_ = nullptr;
};

// As weights come to a device: from pinned memory, which is as long as the loader's.
class Copies {
 public:
  explicit Copies(Device& device) : device_(device) {
    void* data = ::mmap(nullptr, kPinnedNbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) RaiseError("ExecutionError", "no memory to copy from: ", ErrnoText(errno));
    host_ = static_cast<std::byte*>(data);
    try {
      device_.Do("cuMemHostRegister", [&](const Driver& driver) { return driver.HostRegister(host_, kPinnedNbytes, 0); });
      registered_ = true;
      device_.Do("cuMemAlloc", [&](const Driver& driver) { return driver.MemoryAllocate(&there_, kPinnedNbytes); });
    } catch (...) {
      Release();
      throw;
    }
  }
  ~Copies() {
    device_.Settle();
    Release();
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void Copy(uint64_t nbytes) const {
    for (uint64_t done = 0; done < nbytes; done += kCopied) {
      const uint64_t at = done % kPinnedNbytes;
      device_.Do("cuMemcpyAsync", [&](const Driver& driver) {
        return driver.CopyAsync(there_ + at, reinterpret_cast<DevicePointer>(host_) + at, kCopied, device_.copy());
      });
    }
    device_.Finish(device_.copy());
  }

 private:
  void Release() noexcept {
    if (there_ != 0) device_.Insist("cuMemFree", [&](const Driver& driver) { return driver.MemoryFree(there_); });
    if (registered_) device_.Insist("cuMemHostUnregister", [&](const Driver& driver) { return driver.HostUnregister(host_); });
    ::munmap(host_, kPinnedNbytes);
  }

  Device& device_;
  std::byte* host_ = nullptr;
  bool registered_ = false;
  DevicePointer there_ = 0;
};

template <typename Work>
double MedianSeconds(const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::array<double, kRounds> seconds;
  work();  // including the work that happens once
  for (double& one : seconds) {
    const auto start = Clock::now();
    work();
    one = std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  return seconds[kRounds / 2];
}

}  // namespace

DeviceRates MeasureRates(Device& device) {
  DeviceRates rates;
  const Nothing nothing(device);
  const Moment moment(device);
  rates.wait_s = MedianSeconds([&] {
    nothing.Launch();
    device.Finish(device.compute());
  });
  rates.launch_s = MedianSeconds([&] {
                     for (int i = 0; i < kInRow; ++i) nothing.Launch();
                     device.Finish(device.compute());
                   }) /
                   kInRow;
  const double to_and_fro = MedianSeconds([&] {
                              for (int i = 0; i < kInRow; ++i) {
                                nothing.Launch();
                                moment.HandOver(device.compute(), device.copy());
                                moment.HandOver(device.copy(), device.compute());
                              }
                              device.Finish(device.compute());
                            }) /
                            kInRow;
  rates.event_s = std::max(0.0, (to_and_fro - rates.launch_s) / 2);
  if (!device.integrated()) {
    const Copies copies(device);
    rates.copy_bytes_per_s = static_cast<double>(kCopiedNbytes) / MedianSeconds([&] { copies.Copy(kCopiedNbytes); });
  }
  return rates;
}

}  // namespace flexcomp::cuda

#include "cuda/device.h"

#include "base/error.h"

namespace flexcomp::cuda {
namespace {

constexpr Result kEccUncorrectable = 214, kIllegalAddress = 700, kLaunchTimeout = 702, kContextDestroyed = 709, kAssert = 710,
                 kStackError = 714, kLaunchFailed = 719, kDeinitialized = 4;

// Errors that stay: every later call in the context gives them again.
bool Stays(Result result) {
  return result == kDeinitialized || result == kEccUncorrectable || result == kIllegalAddress || result == kLaunchTimeout ||
         result == kContextDestroyed || result == kAssert || (result >= kStackError && result <= kLaunchFailed) || result == kUnknownError;
}

}  // namespace

Device::Device() {
  int count = 0;
  if (const Result result = driver_.DeviceGetCount(&count); result != kSuccess || count == 0)
    RaiseError("TargetError", "the library was built for a GPU, and the CUDA driver finds none",
               result == kSuccess ? "" : ": " + driver_.Describe(result));
  char name[256] = {};
  if (const Result result = driver_.DeviceGet(&ordinal_, 0); result != kSuccess) Raise({result, "cuDeviceGet"});
  if (const Result result = driver_.DeviceGetName(name, sizeof(name) - 1, ordinal_); result != kSuccess)
    Raise({result, "cuDeviceGetName"});
  name_ = name;
  major_ = Attribute(kMajor);
  minor_ = Attribute(kMinor);
  integrated_ = Attribute(kIntegrated) != 0;
  const int needed = integrated_ ? kHostRegister : kVirtualMemory;
  if (Attribute(needed) == 0)
    RaiseError("TargetError", "the GPU here, ", name_, ", cannot ", integrated_ ? "use memory of this processor" : "map its memory piece by piece",
               ": streamed weights need that");
  try {
    Open();
  } catch (...) {
    Close();
    throw;
  }
}

int Device::Attribute(int attribute) const {
  int value = 0;
  if (const Result result = driver_.DeviceGetAttribute(&value, attribute, ordinal_); result != kSuccess)
    Raise({result, "cuDeviceGetAttribute"});
  return value;
}

void Device::Open() {
  if (const Result result = driver_.PrimaryContextRetain(&context_, ordinal_); result != kSuccess) {
    context_ = nullptr;
    Raise({result, "cuDevicePrimaryCtxRetain"});
  }
  // Work of others on the default stream is none of theirs.
  Do("cuStreamCreate", [&](const Driver& driver) { return driver.StreamCreate(&compute_, kNonBlocking); });
  Do("cuStreamCreate", [&](const Driver& driver) { return driver.StreamCreate(&copy_, kNonBlocking); });
}

void Device::Close() noexcept {
  for (const Stream stream : {compute_, copy_})
    if (stream != nullptr) Insist("cuStreamDestroy", [&](const Driver& driver) { return driver.StreamDestroy(stream); });
  if (context_ != nullptr && driver_.PrimaryContextRelease(ordinal_) != kSuccess) driver_.PrimaryContextRelease(ordinal_);
}

Device::~Device() {
  Settle();
  Close();
}

void Device::Finish(Stream stream) {
  Do("cuStreamSynchronize", [&](const Driver& driver) { return driver.StreamSynchronize(stream); });
}

void Device::Settle() noexcept {
  for (const Stream stream : {compute_, copy_}) {
    // Nobody knows which work still runs: no memory may be used again.
    if (const Refusal refusal = Insist("cuStreamSynchronize", [&](const Driver& driver) { return driver.StreamSynchronize(stream); }))
      Lose(refusal);
  }
}

Refusal Device::Note(const Refusal& refusal) noexcept {
  if (Stays(refusal.result)) Lose(refusal);
  return refusal;
}

std::string Device::Describe(const Refusal& refusal) const {
  return std::string(refusal.call) + " on " + name_ + ": " + driver_.Describe(refusal.result);
}

void Device::Raise(const Refusal& refusal, const char* kind) const {
  RequireAlive();
  flexcomp::Raise(kind, Describe(refusal));
}

void Device::RequireAlive() const {
  if (const Result lost = lost_.load(std::memory_order_relaxed); lost != kSuccess)
    RaiseError("ExecutionError", "the CUDA context of this process on ", name_, " is lost since ", driver_.Describe(lost),
               ": nothing runs there any more, until a new process opens the network");
}

}  // namespace flexcomp::cuda

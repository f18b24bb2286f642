// libFuzzer on the reader of kernels for GPUs: whatever lies at a kernel's symbol, nothing beyond it is read, and what is accepted
// can be launched.
#include <tvm/ffi/error.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cuda/device_kernel.h"

namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flexcomp::cuda;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const DeviceKernel kernel = ReadDeviceKernel(bytes, size);
    Require(!kernel.launches.empty() && !kernel.images.empty(), "nothing to launch");
    for (const Launch& launch : kernel.launches) {
      Require(uint64_t{launch.threads[0]} * launch.threads[1] * launch.threads[2] <= 1024, "too many threads");
      Require(!launch.name.empty() && !launch.arguments.empty(), "a launch of nothing");
      for (const uint8_t position : launch.arguments) Require(position < kMostParameters, "an argument that there is not");
    }
    for (const Image& image : kernel.images)
      Require(image.bytes.data() >= bytes && image.bytes.data() + image.bytes.size() <= bytes + size, "an image from elsewhere");
    for (const int architecture : {0, 75, 80, 87, 90, 120})
      if (const Image* image = ChooseImage(kernel, architecture))
        Require(image->architecture <= static_cast<uint32_t>(architecture), "an image for a later GPU");
  } catch (const tvm::ffi::Error& error) {
    Require(error.kind() == "ArtifactError", "an error of another kind");
  }
  return 0;
}

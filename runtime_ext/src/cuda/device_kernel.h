// A kernel for GPUs in a library: machine code of its device functions, and their launches.
// flexcomp/program/device_kernel.py is the authority for the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flexcomp::cuda {

struct Launch {
  struct Extent {
    uint32_t fixed, per_count;  // blocks: fixed + per_count * count
  };
  Extent blocks[3];
  uint32_t threads[3];
  std::vector<uint8_t> arguments;  // positions of the kernel's parameters
  std::string name;
};

struct Image {
  uint32_t architecture;  // 87: sm_87
  bool ptx;               // which is compiled by the driver; otherwise machine code
  std::span<const std::byte> bytes;
};

struct DeviceKernel {
  std::vector<Launch> launches;  // in order
  uint64_t integers = 0;         // bit i: parameter i is a number
  std::vector<Image> images;     // point into the bytes read
};

// The most parameters that a kernel has.
inline constexpr uint32_t kMostParameters = 64;

// Reads the bytes at a kernel's symbol, of which at most `nbytes` are there. Throws ArtifactError.
DeviceKernel ReadDeviceKernel(const std::byte* data, uint64_t nbytes);

// The image that a GPU of this architecture runs: machine code of its own major version and no later minor one, the latest, or else
// the latest PTX that is not newer. nullptr: there is none.
const Image* ChooseImage(const DeviceKernel& kernel, int architecture, bool cubins = true);

}  // namespace flexcomp::cuda

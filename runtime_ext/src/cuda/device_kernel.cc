#include "cuda/device_kernel.h"

#include <cstring>

#include "base/error.h"
#include "program/program.h"

namespace flexcomp::cuda {
namespace {

constexpr uint32_t kMagic = 0x55435846, kVersion = 1;  // "FXCU"
constexpr uint32_t kMostLaunches = 1 << 10, kMostImages = 64, kMostThreads = 1024;
constexpr uint64_t kImageAlign = 8;

class Reader {
 public:
  Reader(const std::byte* data, uint64_t nbytes) : data_(data), nbytes_(nbytes) {}

  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, TakeBytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> TakeBytes(uint64_t count) {
    if (count > nbytes_ - at_) Raise("ArtifactError", "a kernel for a GPU ends in the middle");
    at_ += count;
    return {data_ + (at_ - count), count};
  }
  uint32_t TakeCount(uint32_t most, const char* what) {
    const auto count = Take<uint32_t>();
    if (count == 0 || count > most) RaiseError("ArtifactError", "a kernel for a GPU has ", count, " ", what);
    return count;
  }
  void SkipTo(uint64_t align) { TakeBytes(RoundUp(at_, align) - at_); }
  void Limit(uint64_t nbytes) {
    if (nbytes < at_ || nbytes > nbytes_) RaiseError("ArtifactError", "a kernel for a GPU says that it has ", nbytes, " bytes");
    nbytes_ = nbytes;
  }
  void RequireEnd() const {
    if (at_ != nbytes_) Raise("ArtifactError", "a kernel for a GPU has bytes behind its end");
  }

 private:
  const std::byte* data_;
  uint64_t nbytes_, at_ = 0;
};

Launch ReadLaunch(Reader& reader) {
  Launch launch;
  for (Launch::Extent& extent : launch.blocks) extent = {reader.Take<uint32_t>(), reader.Take<uint32_t>()};
  uint64_t threads = 1;
  for (uint32_t& extent : launch.threads) threads *= extent = reader.TakeCount(kMostThreads, "threads");
  if (threads > kMostThreads) RaiseError("ArtifactError", "a kernel for a GPU has ", threads, " threads in a block");
  launch.arguments.resize(reader.TakeCount(kMostParameters, "arguments"));
  for (uint8_t& position : launch.arguments) {
    position = reader.Take<uint8_t>();
    if (position >= kMostParameters) RaiseError("ArtifactError", "a kernel for a GPU takes its argument ", int{position});
  }
  const auto name = reader.TakeBytes(reader.TakeCount(1 << 10, "letters in a name"));
  launch.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (launch.name.find('\0') != std::string::npos) Raise("ArtifactError", "a name in a kernel for a GPU holds a zero");
  return launch;
}

Image ReadImage(Reader& reader) {
  Image image;
  image.architecture = reader.Take<uint32_t>();
  const auto kind = reader.Take<uint32_t>();
  if (kind > 1) RaiseError("ArtifactError", "a kernel for a GPU has an image of the unknown kind ", kind);
  image.ptx = kind == 1;
  const auto nbytes = reader.Take<uint64_t>();
  reader.SkipTo(kImageAlign);
  image.bytes = reader.TakeBytes(nbytes);
  // The driver finds the end of either by itself.
  if (nbytes == 0 || (image.ptx && image.bytes.back() != std::byte{0}))
    Raise("ArtifactError", "a kernel for a GPU has an image without an end");
  return image;
}

}  // namespace

DeviceKernel ReadDeviceKernel(const std::byte* data, uint64_t nbytes) {
  Reader reader(data, nbytes);
  if (reader.Take<uint32_t>() != kMagic) Raise("ArtifactError", "what the library has for a kernel is none for a GPU");
  if (const auto version = reader.Take<uint32_t>(); version != kVersion)
    RaiseError("ArtifactError", "a kernel for a GPU has the format ", version, ", this runtime reads ", kVersion);
  reader.Limit(reader.Take<uint64_t>());
  const uint32_t launches = reader.TakeCount(kMostLaunches, "launches"), images = reader.TakeCount(kMostImages, "images");
  DeviceKernel kernel;
  for (uint32_t i = 0; i < launches; ++i) kernel.launches.push_back(ReadLaunch(reader));
  kernel.integers = reader.Take<uint64_t>();
  for (uint32_t i = 0; i < images; ++i) kernel.images.push_back(ReadImage(reader));
  reader.RequireEnd();
  return kernel;
}

const Image* ChooseImage(const DeviceKernel& kernel, int architecture, bool cubins) {
  const auto wanted = static_cast<uint32_t>(architecture);
  const Image* chosen = nullptr;
  for (const Image& image : kernel.images) {
    if ((!cubins && !image.ptx) || image.architecture > wanted || (!image.ptx && image.architecture / 10 != wanted / 10)) continue;
    if (chosen == nullptr || (chosen->ptx && !image.ptx) || (chosen->ptx == image.ptx && chosen->architecture < image.architecture))
      chosen = &image;
  }
  return chosen;
}

}  // namespace flexcomp::cuda

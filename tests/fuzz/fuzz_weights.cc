// libFuzzer on the opening of weights files. An input is what a file holds, behind a byte that says whether all of it is to
// be verified; the program wants the file that `Original` makes. Every change of it must be refused with verification, and
// every change of its size or header without.
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "base/crc32.h"
#include "program/program.h"
#include "storage/weights_file.h"

namespace {

using flexcomp::kPage;

std::string Original() {
  std::string text = R"({"__metadata__":{"format":"flexcomp.weights.1","model":"fuzz"},"w":{"dtype":"U8","shape":[6000],"data_offsets":[0,6000]}})";
  text.resize(kPage - 8, ' ');
  const uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += text;
  for (uint32_t i = 0; i < 2 * kPage; ++i) file += static_cast<char>(i < 6000 ? i * 2654435761u >> 24 : 0);
  return file;
}

flexcomp::Program ProgramOf(const std::string& file) {
  flexcomp::Program program;
  program.weights.file_nbytes = file.size();
  program.weights.header_nbytes = kPage;
  program.weights.header_crc = flexcomp::Crc32(0, file.data(), kPage);
  program.weights.data_nbytes = file.size() - kPage;
  for (uint64_t at = 0; at < program.weights.data_nbytes;) {
    const uint64_t nbytes = std::min<uint64_t>(3000, program.weights.data_nbytes - at);
    program.weights.checksums.push_back({at, nbytes, flexcomp::Crc32(0, file.data() + kPage + at, nbytes)});
    at += nbytes;
  }
  return program;
}

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

// Half of the inputs are the right file with a little of it changed: checksums keep others far from it.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  std::minstd_rand random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string content = Original();
  for (auto changes = random() % 3; changes > 0 && !content.empty(); --changes) {
    const size_t at = random() % content.size();
    switch (random() % 5) {
      case 0:
        content.resize(at);
        break;
      case 1:
        content.insert(at, random() % 2 == 0 ? 1 : kPage, static_cast<char>(random()));
        break;
      case 2:
        std::swap(content[at], content[random() % content.size()]);
        break;
      default:
        content[at] ^= static_cast<char>(1 << random() % 8);
    }
  }
  content.insert(content.begin(), static_cast<char>(random() % 2));
  content.resize(std::min(content.size(), most));
  std::memcpy(data, content.data(), content.size());
  return content.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string original = Original();
  static const flexcomp::Program program = ProgramOf(original);
  static const int file = ::memfd_create("weights", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (size == 0) return 0;
  const bool verify = data[0] & 1;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  Require(::ftruncate(file, 0) == 0 && ::pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()),
          "no file");
  const timespec long_ago[2] = {{1, 1}, {1, 1}};  // what was changed just now would be waited for
  Require(::futimens(file, long_ago) == 0, "no time");
  const bool same_header = content.size() == original.size() && content.substr(0, kPage) == original.substr(0, kPage);
  try {
    flexcomp::StorageOptions options;
    options.verify = verify;
    options.direct = false;  // without a queue of the kernel, which takes longer to take down than all the rest
    const flexcomp::WeightsFile weights(path, program, options);
    Require(same_header, "another header or size was accepted");
    Require(!verify || content == original, "other weights were accepted with verification");
  } catch (const tvm::ffi::Error& error) {
    Require(error.kind() == "ArtifactError", error.what());
    Require(content != original, "the right file was refused");
  }
  return 0;
}

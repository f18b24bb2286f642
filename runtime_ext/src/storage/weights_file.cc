#include "storage/weights_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/crc32.h"
#include "base/error.h"
#include "storage/file_source.h"
#include "storage/read_errors.h"
#include "storage/reader_source.h"
#include "storage/source_filters.h"

namespace flexcomp {
namespace {

constexpr size_t kChecksumChunk = 1 << 20;  // bytes of the file in memory while checksums are computed

// Mapped: every thread that opens models would keep a heap of this size.
class PageBuffer {
 public:
  explicit PageBuffer(size_t nbytes)
      : nbytes_(nbytes), data_(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) Raise("StorageError", "no memory for reading the weights file");
  }
  ~PageBuffer() { ::munmap(data_, nbytes_); }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  size_t nbytes_;
  void* data_;
};

// The layer whose weights hold byte `offset` of the data section, for messages.
std::string LayerAt(const Program& program, uint64_t offset) {
  for (const Layer& layer : program.layers)
    if (layer.weights && offset >= layer.weights->offset && offset - layer.weights->offset < layer.weights->nbytes())
      return layer.name;
  return "no layer";
}

struct Opened {
  std::unique_ptr<ByteSource> source;
  uint64_t nbytes;
};

Opened Open(const WeightsSource& source, bool direct) {
  if (const auto* reader = std::get_if<Reader>(&source)) return {std::make_unique<ReaderSource>(*reader), reader->nbytes};
  const auto* range = std::get_if<DescriptorRange>(&source);
  auto file = range != nullptr ? std::make_unique<FileSource>(*range, direct)
                               : std::make_unique<FileSource>(std::get<std::string>(source), direct);
  const uint64_t nbytes = file->nbytes();
  return {std::move(file), nbytes};
}

// Calls visit(offset, data, nbytes) for consecutive pieces of [begin, begin + nbytes).
template <typename Visit>
void Scan(ByteSource& source, const std::string& name, uint64_t begin, uint64_t nbytes, Visit visit) {
  const PageBuffer buffer(std::min<uint64_t>(kChecksumChunk, RoundUp(nbytes, kPage)));
  for (uint64_t at = 0; at < nbytes; at += kChecksumChunk) {
    const uint64_t piece = std::min<uint64_t>(kChecksumChunk, nbytes - at);
    const int error = source.Read(begin + at, buffer.get(), RoundUp(piece, kPage));
    if (error == ECANCELED) RaiseReadCancelled();
    if (error != 0) RaiseError("ArtifactError", "cannot read ", name, ": ", ReadErrorText(error));
    visit(at, buffer.get(), piece);
  }
}

void CheckHeader(ByteSource& source, const std::string& name, const WeightsDigest& digest) {
  uint32_t crc = 0;
  Scan(source, name, 0, digest.header_nbytes,
       [&](uint64_t, const std::byte* data, uint64_t nbytes) { crc = Crc32(crc, data, nbytes); });
  if (crc != digest.header_crc)
    RaiseError("ArtifactError", name,
               " is damaged or belongs to another model: its header is not the one this library was built with");
}

// One sequential pass; the checksums cover the whole file. Returns the CRC-32 of each page: loads are not whole tensors.
std::vector<uint32_t> CheckData(ByteSource& source, const std::string& name, const Program& program) {
  const WeightsDigest& digest = program.weights;
  std::vector<uint32_t> pages;
  pages.reserve(RoundUp(digest.data_nbytes, kPage) / kPage);
  auto sum = digest.checksums.begin();
  uint32_t crc = 0;
  Scan(source, name, digest.header_nbytes, digest.data_nbytes, [&](uint64_t at, const std::byte* data, uint64_t nbytes) {
    for (uint64_t page = 0; page < nbytes; page += kPage) pages.push_back(Crc32(0, data + page, std::min(kPage, nbytes - page)));
    while (sum != digest.checksums.end() && sum->offset < at + nbytes) {
      const uint64_t begin = std::max(sum->offset, at);
      const uint64_t end = std::min(sum->offset + sum->nbytes, at + nbytes);
      crc = Crc32(crc, data + (begin - at), end - begin);
      if (end < sum->offset + sum->nbytes) return;  // goes on in the next piece
      if (crc != sum->crc)
        RaiseError("ArtifactError", name, " is damaged: the checksum of ", sum->nbytes,
                   " bytes at ", sum->offset, " differs (layer ", LayerAt(program, sum->offset), ")");
      crc = 0;
      ++sum;
    }
  });
  return pages;
}

}  // namespace

WeightsFile::WeightsFile(const WeightsSource& source, const Program& program, const StorageOptions& options)
    : name_(std::visit([](const auto& one) { return NameOf(one); }, source)), header_nbytes_(program.weights.header_nbytes) {
  const WeightsDigest& digest = program.weights;
  auto [opened, nbytes] = Open(source, options.direct);
  if (nbytes != digest.file_nbytes)
    RaiseError("ArtifactError", name_, " has ", nbytes, " bytes, this library was built with a weights file of ", digest.file_nbytes,
               ": it is cut short or belongs to another model");
  CheckHeader(*opened, name_, digest);
  std::vector<uint32_t> pages;
  if (options.verify) pages = CheckData(*opened, name_, program);
  source_ = std::move(opened);
  if (options.verify) {
    auto verified = std::make_unique<VerifiedSource>(std::move(source_), header_nbytes_, digest.file_nbytes, std::move(pages));
    verified_ = verified.get();
    source_ = std::move(verified);
  }
  if (options.fail_read_at > 0) source_ = std::make_unique<FaultySource>(std::move(source_), options.fail_read_at);
  if (options.read_bandwidth > 0) source_ = std::make_unique<ThrottledSource>(std::move(source_), options.read_bandwidth);
}

void WeightsFile::Verify(bool verifies) noexcept {
  if (verified_ != nullptr) verified_->Look(verifies);
}

}  // namespace flexcomp

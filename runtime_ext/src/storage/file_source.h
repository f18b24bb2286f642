// Bytes of a local file, or of a range of one, past the page cache where the file system allows it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "storage/byte_source.h"
#include "storage/open_file.h"
#include "storage/read_queue.h"
#include "storage/shared_copy.h"
#include "storage/weights_source.h"

namespace flexcomp {

class FileSource final : public ByteSource {
 public:
  // Opens `path` with O_DIRECT if `direct` is wanted and possible; otherwise reads through the page cache
  // and drops the pages again. Waits for a tick of the clock if the file was written in this one. Throws ArtifactError.
  FileSource(const std::string& path, bool direct);
  // The same for a range of a file that somebody has open. Reads bypass the page cache if the range begins at a page of the file, too,
  // and the system lets this process open the file anew.
  FileSource(const DescriptorRange& range, bool direct);
  ~FileSource() override;

  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override;
  int End() noexcept override;
  bool Help() noexcept override;
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept override { return ReadRange(offset, target, nbytes); }
  int Check() const noexcept override;
  bool direct() const noexcept override { return direct_; }
  bool queued() const noexcept override { return queue_ != nullptr; }
  uint64_t nbytes() const noexcept { return nbytes_; }

 private:
  struct Request {
    uint64_t offset = 0;
    std::byte* target = nullptr;
    size_t nbytes = 0;
    bool queued = false;  // otherwise read by the thread that waits
  };

  // Fields that every change of the file changes. The descriptor holds one file, even if its name is given to another.
  struct Version {
    uint64_t nbytes = 0;
    int64_t changed_s = 0, changed_ns = 0;  // the time of the last write, on the file system's clock
    bool operator==(const Version&) const = default;
  };
  int fd() const noexcept { return file_->get(); }
  static Version VersionOf(const struct stat& status);

  // After opening.
  void SetUp(const struct stat& status, const std::string& name);
  void Settle(const std::string& name);
  bool ProbeDirect() noexcept;
  // Reads bytes, of which `got` are there, and which may reach beyond the end of the range.
  int ReadRange(uint64_t offset, std::byte* target, size_t nbytes, size_t got = 0) const noexcept;
  auto Part() const noexcept {
    return [this](uint64_t offset, std::byte* target, size_t nbytes) { return ReadRange(offset, target, nbytes); };
  }

  std::shared_ptr<const UniqueFd> file_;
  uint64_t begin_ = 0, nbytes_ = 0;  // the range
  Version version_;
  bool direct_ = false;
  bool in_memory_ = false;  // the file system: reads are copies by the calling thread, queued or not
  SharedCopy copy_;
  std::unique_ptr<ReadQueue> queue_;  // of direct reads
  InFlight<Request> requests_;
};

}  // namespace flexcomp

// Bytes of a local file, past the page cache where the file system allows it.
#pragma once

#include <memory>
#include <string>

#include "byte_source.h"
#include "unique_fd.h"

namespace flexcomp {

class FileSource final : public ByteSource {
 public:
  // Opens `path` with O_DIRECT if `direct` is wanted and possible; otherwise reads through the page cache
  // and drops the pages again. Throws ArtifactError.
  FileSource(const std::string& path, bool direct);

  int Read(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool direct() const noexcept override { return direct_; }
  uint64_t file_nbytes() const noexcept { return file_nbytes_; }

 private:
  bool ProbeDirect() noexcept;

  UniqueFd fd_;
  uint64_t file_nbytes_ = 0;
  bool direct_ = false;
};

}  // namespace flexcomp

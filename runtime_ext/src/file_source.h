// Bytes of a local file, past the page cache where the file system allows it.
#pragma once

#include <memory>
#include <string>

#include "byte_source.h"
#include "kernel_aio.h"
#include "unique_fd.h"

namespace flexcomp {

class FileSource final : public ByteSource {
 public:
  // Opens `path` with O_DIRECT if `direct` is wanted and possible; otherwise reads through the page cache
  // and drops the pages again. Throws ArtifactError.
  FileSource(const std::string& path, bool direct);
  ~FileSource() override;

  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept override;
  bool Ready() noexcept override;
  int End() noexcept override;
  bool direct() const noexcept override { return direct_; }
  bool queued() const noexcept override { return direct_ && aio_.available(); }
  uint64_t file_nbytes() const noexcept { return file_nbytes_; }

 private:
  struct Request {
    uint64_t offset = 0;
    std::byte* target = nullptr;
    size_t nbytes = 0;
    bool queued = false;  // by the kernel; otherwise it is read when it is waited for
  };

  bool ProbeDirect() noexcept;
  // Reads what is missing behind the first `got` bytes.
  int ReadRest(const Request& request, size_t got) noexcept;

  UniqueFd fd_;
  uint64_t file_nbytes_ = 0;
  bool direct_ = false;
  KernelAio aio_;
  InFlight<Request> requests_;
};

}  // namespace flexcomp

// The weights file of a model, wherever its bytes come from: recognised at opening, verified on request, read by the loader.
// The format stands in flexcomp/program/weights_file.py, the authority.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "program/program.h"
#include "storage/byte_source.h"
#include "storage/weights_source.h"

namespace flexcomp {

struct StorageOptions {
  bool direct = true;           // try O_DIRECT
  bool verify = false;          // check every byte at opening, and again with every read
  double read_bandwidth = 0;    // bytes per second; 0: no limit
  uint64_t fail_read_at = 0;    // tests: the load's n-th read fails once; 0: never
};

class VerifiedSource;

class WeightsFile {
 public:
  // Throws ArtifactError unless the source has the file that the program was made with, and CancelledError if a reader cancels.
  WeightsFile(const WeightsSource& source, const Program& program, const StorageOptions& options);
  // Whatever the source holds, without a header. For tests.
  WeightsFile(const std::string& path, std::unique_ptr<ByteSource> source)
      : name_(NameOf(path)), header_nbytes_(0), source_(std::move(source)) {}

  // As those of ByteSource, with offsets in the data section.
  void Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
    source_->Begin(header_nbytes_ + offset, target, nbytes);
  }
  bool Ready() noexcept { return source_->Ready(); }
  int End() noexcept { return source_->End(); }
  bool Help() noexcept { return source_->Help(); }
  int ReadNow(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
    return source_->ReadNow(header_nbytes_ + offset, target, nbytes);
  }
  int Check() const noexcept { return source_->Check(); }
  bool direct() const noexcept { return source_->direct(); }
  bool queued() const noexcept { return source_->queued(); }
  // Whether reads are verified, where that was requested; with nothing in flight.
  void Verify(bool verifies) noexcept;
  const std::string& name() const noexcept { return name_; }  // for messages

  // Throws StorageError if the source was changed since opening.
  void RequireUnchanged() const;
  // Why a read at this offset failed, `of` what: throws StorageError, or CancelledError if a reader cancelled.
  [[noreturn]] void RaiseReadError(uint64_t offset, int error, const std::string& of) const;

 private:
  std::string name_;
  uint64_t header_nbytes_;
  std::unique_ptr<ByteSource> source_;
  VerifiedSource* verified_ = nullptr;  // within `source_`
};

}  // namespace flexcomp

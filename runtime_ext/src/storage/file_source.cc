#include "storage/file_source.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>

#include "base/error.h"
#include "program/program.h"

namespace flexcomp {

FileSource::FileSource(const std::string& path, bool direct) {
  struct stat status;
  const auto open = [&](int flags) {
    file_ = OpenFile(path, flags, &status);
    if (!file_) return false;
    if (!S_ISREG(status.st_mode)) RaiseError("ArtifactError", "the weights file ", path, " is not a regular file");
    return true;
  };
  direct_ = direct && open(O_DIRECT) && ProbeDirect();
  if (!direct_ && !open(0)) RaiseError("ArtifactError", "cannot open the weights file ", path, ": ", ErrnoText(errno));
  nbytes_ = static_cast<uint64_t>(status.st_size);
  SetUp(status, NameOf(path));
}

FileSource::FileSource(const DescriptorRange& range, bool direct) : begin_(range.offset), nbytes_(range.nbytes) {
  const std::string name = NameOf(range);
  struct stat status;
  if (::fstat(range.descriptor, &status) != 0) RaiseError("ArtifactError", "cannot look at ", name, ": ", ErrnoText(errno));
  if (!S_ISREG(status.st_mode)) RaiseError("ArtifactError", name, " is not in a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (begin_ > size || nbytes_ > size - begin_)
    RaiseError("ArtifactError", name, " ends outside of the file: ", nbytes_, " bytes from byte ", begin_, " of ", size);
  const auto open = [&](int flags) {
    file_ = OpenAgain(range.descriptor, flags, &status);
    return file_ != nullptr;
  };
  direct_ = direct && begin_ % kPage == 0 && open(O_DIRECT) && ProbeDirect();
  if (!direct_ && !open(0)) RaiseError("ArtifactError", "cannot open ", name, ": ", ErrnoText(errno));
  SetUp(status, name);
}

void FileSource::SetUp(const struct stat& status, const std::string& name) {
  version_ = VersionOf(status);
  Settle(name);
  struct statfs system;
  in_memory_ = ::fstatfs(fd(), &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
  if (direct_ && !in_memory_) queue_ = MakeReadQueue(fd());
}

FileSource::~FileSource() {
  while (requests_.size() > 0) End();  // the device would go on writing
}

FileSource::Version FileSource::VersionOf(const struct stat& status) {
  return {static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

// File systems stamp changes with a clock that stands still between its ticks, and some with whole seconds: a second change
// in the same tick leaves the time unchanged. So an opened file has to be older than a tick.
void FileSource::Settle(const std::string& name) {
  constexpr int64_t kSecond = 1'000'000'000, kCoarsest = 2 * kSecond;  // FAT's
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; };
  timespec time;
  ::clock_getres(CLOCK_REALTIME_COARSE, &time);
  const int64_t lag = nanoseconds(time);  // of that clock, at most
  const int64_t tick = version_.changed_ns == 0 ? kCoarsest : lag;
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  const int64_t age = nanoseconds(time) - (version_.changed_s * kSecond + version_.changed_ns);
  if (age < -lag || age >= tick) return;  // in the future: a change would bring another time
  std::this_thread::sleep_for(std::chrono::nanoseconds(tick - age));
  if (Check() != 0) RaiseError("ArtifactError", name, " is being written to");
}

int FileSource::Check() const noexcept {
  struct stat status;
  if (::fstat(fd(), &status) != 0) return errno;
  return VersionOf(status) == version_ ? 0 : kChanged;
}

// Some file systems accept the flag and refuse the read.
bool FileSource::ProbeDirect() noexcept {
  std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPage, kPage), &std::free);
  return page && ::pread64(fd(), page.get(), kPage, static_cast<off64_t>(begin_)) >= 0;
}

void FileSource::Begin(uint64_t offset, std::byte* target, size_t nbytes) noexcept {
  // Through the page cache the kernel would read at once, and keep the caller from bytes that have arrived already.
  const bool submitted = queued() && offset < nbytes_ &&
                         queue_->Submit(requests_.next_slot(), begin_ + offset, target, nbytes) == 0;
  requests_.Push({offset, target, nbytes, submitted});
}

bool FileSource::Ready() noexcept {
  return !requests_.Oldest().queued || queue_->Ended(requests_.oldest_slot());
}

int FileSource::End() noexcept {
  const Request request = requests_.Oldest();
  const uint32_t slot = requests_.oldest_slot();
  requests_.Pop();
  const auto& [offset, target, nbytes, queued] = request;
  if (!queued && in_memory_ && offset < nbytes_)
    return copy_.Run(offset, target, std::min<uint64_t>(nbytes, RoundUp(nbytes_ - offset, kPage)), Part());
  if (!queued) return ReadRange(offset, target, nbytes);
  const int64_t result = queue_->Await(slot);
  if (result == -EINTR || result == -EAGAIN) return ReadRange(offset, target, nbytes);
  if (result < 0) return static_cast<int>(-result);
  return result == 0 ? ENODATA : ReadRange(offset, target, nbytes, static_cast<size_t>(result));
}

bool FileSource::Help() noexcept { return in_memory_ && copy_.Help(Part()); }

int FileSource::ReadRange(uint64_t offset, std::byte* target, size_t nbytes, size_t got) const noexcept {
  if (offset >= nbytes_) return EINVAL;
  const size_t wanted = std::min<uint64_t>(nbytes, nbytes_ - offset);
  const uint64_t begin = begin_ + offset;
  while (got < wanted) {
    // A direct read that was cut short inside a page goes on from the start of that page.
    if (direct_ && got % kPage != 0) {
      if (got < kPage) return EIO;
      got = got / kPage * kPage;
    }
    // The whole page is asked for at the end of the range too: direct reads want round sizes.
    const ssize_t n = ::pread64(fd(), target + got, (direct_ ? nbytes : wanted) - got, static_cast<off64_t>(begin + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENODATA;  // the file became shorter after opening
    if (direct_ && static_cast<size_t>(n) < kPage && got + static_cast<size_t>(n) < wanted) return EIO;
    got += static_cast<size_t>(n);
  }
  if (!direct_ && !in_memory_) {  // only whole pages go
    const uint64_t page = begin / kPage * kPage;
    ::posix_fadvise(fd(), static_cast<off_t>(page), static_cast<off_t>(RoundUp(begin + nbytes, kPage) - page), POSIX_FADV_DONTNEED);
  }
  return 0;
}

}  // namespace flexcomp

#include "storage/open_file.h"

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <tuple>

#include "base/fork_mutex.h"

namespace flexcomp {
namespace {

// Device, number, when either was changed, flags. An open descriptor keeps its number from other files, but not on a server.
using Key = std::tuple<dev_t, ino_t, time_t, int64_t, int>;

using Table = std::map<Key, std::weak_ptr<const UniqueFd>>;

// Never destroyed: models that live until the process ends give their files back after everything else.
alignas(Table) std::byte place[sizeof(Table)];
Table& known_files = *new (place) Table;

}  // namespace

std::shared_ptr<const UniqueFd> OpenFile(const std::string& path, int flags, struct stat* status) {
  // Without waiting: a pipe would have to be opened for writing, too.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  if (fd.get() < 0 || ::fstat(fd.get(), status) != 0) return nullptr;
  const std::lock_guard lock(ForkMutex::Get());
  std::erase_if(known_files, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const UniqueFd>& known =
      known_files[{status->st_dev, status->st_ino, status->st_ctim.tv_sec, status->st_ctim.tv_nsec, flags}];
  std::shared_ptr<const UniqueFd> shared = known.lock();
  if (!shared) known = shared = std::make_shared<const UniqueFd>(std::move(fd));
  return shared;
}

std::shared_ptr<const UniqueFd> OpenAgain(int descriptor, int flags, struct stat* status) {
  if (auto file = OpenFile("/proc/self/fd/" + std::to_string(descriptor), flags, status)) return file;
  UniqueFd copy(flags == 0 ? ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : -1);
  if (copy.get() < 0 || ::fstat(copy.get(), status) != 0) return nullptr;
  return std::make_shared<const UniqueFd>(std::move(copy));
}

}  // namespace flexcomp

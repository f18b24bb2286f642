#include "storage/open_file.h"

#include <fcntl.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <tuple>

namespace flexcomp {
namespace {

// Device, number, when either was changed, flags. An open descriptor keeps its number from other files, but not on a server.
using Key = std::tuple<dev_t, ino_t, time_t, int64_t, int>;

struct Table {
  // A process that is forked while another thread is in here opens files, too.
  Table() noexcept {
    ::pthread_atfork([] { files->mutex.lock(); }, [] { files->mutex.unlock(); }, [] { files->mutex.unlock(); });
  }
  static Table* const files;

  std::mutex mutex;
  std::map<Key, std::weak_ptr<const UniqueFd>> known;
};

// There before any thread, so that none is forked away while it makes it. Never destroyed: models that live until the process
// ends give their files back behind everything else.
alignas(Table) std::byte place[sizeof(Table)];
Table* const Table::files = new (place) Table;

}  // namespace

std::shared_ptr<const UniqueFd> OpenFile(const std::string& path, int flags, struct stat* status) {
  // Without waiting: a pipe would have to be opened for writing, too.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  if (fd.get() < 0 || ::fstat(fd.get(), status) != 0) return nullptr;
  Table& table = *Table::files;
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const UniqueFd>& known =
      table.known[{status->st_dev, status->st_ino, status->st_ctim.tv_sec, status->st_ctim.tv_nsec, flags}];
  std::shared_ptr<const UniqueFd> shared = known.lock();
  if (!shared) known = shared = std::make_shared<const UniqueFd>(std::move(fd));
  return shared;
}

}  // namespace flexcomp

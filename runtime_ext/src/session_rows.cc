// Rows of tables that lie in the file: read by the numbers that an inference asks for, when it does.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "session.h"

namespace flexcomp {

// Numbers are those that a kernel would see: outside of the table they count as its first or last row.
bool Session::FetchRows(const RowsFetch& fetch) {
  for (uint64_t i = 0; i < fetch.count; ++i) {
    if (interrupt_.load(std::memory_order_relaxed)) return false;
    int64_t id = 0;
    if (fetch.wide) {
      std::memcpy(&id, fetch.ids + i * 8, 8);
    } else {
      int32_t narrow;
      std::memcpy(&narrow, fetch.ids + i * 4, 4);
      id = narrow;
    }
    const auto row = static_cast<uint64_t>(std::clamp<int64_t>(id, 0, static_cast<int64_t>(fetch.rows) - 1));
    const uint64_t begin = fetch.table + row * fetch.row_nbytes, page = begin / kPage * kPage;
    const uint64_t nbytes = RoundUp(begin + fetch.row_nbytes, kPage) - page;
    if (const int error = file_->ReadNow(page, fetch.staging, nbytes); error != 0) ThrowFetchError(begin, error);
    std::memcpy(fetch.target + i * fetch.row_nbytes, fetch.staging + (begin - page), fetch.row_nbytes);
    ++fetched_.reads;
    fetched_.bytes += nbytes;
    fetched_total_.fetch_add(nbytes, std::memory_order_relaxed);
  }
  return true;
}

void Session::ThrowFetchError(uint64_t offset, int error) const {
  loader_->RequireUnchanged();  // the better reason
  if (error == ByteSource::kChanged)
    RaiseError("StorageError", "the weights file ", file_->path(), " no longer holds what was verified when it was opened, at byte ",
               offset, " of the data section or behind it: open the model again");
  RaiseError("StorageError", "reading the weights file ", file_->path(), " failed at byte ", offset, " of the data section: ",
             ErrnoText(error));
}

}  // namespace flexcomp

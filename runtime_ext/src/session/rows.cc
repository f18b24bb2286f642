// Rows of tables in the file, read when an inference asks for their numbers.
#include <algorithm>
#include <cstring>

#include "session/session.h"

namespace flexcomp {
namespace {

// Numbers are as for a kernel: outside of the table, the first or last row is meant.
uint64_t RowAt(const RowsFetch& fetch, uint64_t position) {
  int64_t id = 0;
  if (fetch.wide) {
    std::memcpy(&id, fetch.ids + position * 8, 8);
  } else {
    int32_t narrow;
    std::memcpy(&narrow, fetch.ids + position * 4, 4);
    id = narrow;
  }
  return static_cast<uint64_t>(std::clamp<int64_t>(id, 0, static_cast<int64_t>(fetch.table->rows) - 1));
}

void CopyRow(const RowsTable& table, const std::byte* block, uint64_t lane, std::byte* target) {
  for (const Strided& part : table.parts) {
    const std::byte* from = block + part.at + lane * part.nbytes;
    if (table.lanes == 1) {
      std::memcpy(target, from, part.count * part.nbytes);
      target += part.count * part.nbytes;
      continue;
    }
    for (uint64_t i = 0; i < part.count; ++i, target += part.nbytes, from += table.lanes * part.nbytes)
      std::memcpy(target, from, part.nbytes);
  }
}

}  // namespace

bool Session::FetchRows(const RowsFetch& fetch) {
  const RowsTable& table = *fetch.table;
  const auto is_read = [&](uint64_t before, uint64_t block) {
    for (uint64_t i = 0; i < before; ++i)
      if (RowAt(fetch, i) / table.lanes == block) return true;
    return false;
  };
  for (uint64_t i = 0; i < fetch.count; ++i) {
    if (interrupt_.load(std::memory_order_relaxed)) return false;
    const uint64_t block = RowAt(fetch, i) / table.lanes;
    // A block of several rows is read once for all of them.
    if (table.lanes > 1 && is_read(i, block)) continue;
    const uint64_t begin = table.at + block * table.block_nbytes, page = begin / kPage * kPage;
    const uint64_t nbytes = RoundUp(begin + table.block_nbytes, kPage) - page;
    if (const int error = file_->ReadNow(page, fetch.staging, nbytes); error != 0) file_->RaiseReadError(begin, error, "row " + std::to_string(RowAt(fetch, i)));
    const uint64_t first = std::min(block * table.lanes, table.rows - table.lanes);
    const uint64_t end = table.lanes > 1 ? fetch.count : i + 1;
    for (uint64_t k = i; k < end; ++k) {
      const uint64_t row = RowAt(fetch, k);
      if (row / table.lanes != block) continue;
      CopyRow(table, fetch.staging + (begin - page), row - first, fetch.target + k * fetch.row_nbytes);
    }
    ++fetched_.reads;
    fetched_.bytes += nbytes;
    fetched_total_.fetch_add(nbytes, std::memory_order_relaxed);
  }
  return true;
}

}  // namespace flexcomp

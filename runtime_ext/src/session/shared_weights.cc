// Weights that a session makes where other sessions read them, too.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/blake2b.h"
#include "base/error.h"
#include "session/arena_use.h"
#include "session/session.h"

namespace flexcomp {
namespace {

constexpr uint64_t kMostRead = 1 << 20;  // two are in flight, as of a loader

// Stored bytes that are read at a time, and the blocks that are made of them where they are prepared.
struct PieceOfFile {
  FileRange range;
  uint32_t first = 0, count = 0;

  uint64_t page() const { return range.begin / kPage * kPage; }
  uint64_t nbytes() const { return RoundUp(range.end, kPage) - page(); }
};

std::vector<PieceOfFile> Cut(const Layer& layer, uint64_t most) {
  const LayerWeights& weights = *layer.weights;
  std::vector<PieceOfFile> pieces;
  if (!weights.preparation) {
    const uint64_t end = weights.offset + weights.stored_nbytes();
    for (uint64_t at = weights.offset; at < end; at = pieces.back().range.end)
      pieces.push_back({{at, std::min(end, at / kPage * kPage + most / kPage * kPage)}});
    return pieces;
  }
  const auto piece = [&](uint32_t first, uint32_t count) { return PieceOfFile{StoredRange(layer, first, count), first, count}; };
  for (uint32_t first = 0; first < weights.blocks; first += pieces.back().count) {
    uint32_t count = 1;
    while (first + count < weights.blocks && piece(first, count + 1).nbytes() <= most) ++count;
    pieces.push_back(piece(first, count));
  }
  return pieces;
}

// Reads in flight, which end whatever happens.
class Reads {
 public:
  explicit Reads(WeightsFile& file) : file_(file) {}
  ~Reads() {
    while (count_ > 0) End();
  }
  void Begin(const PieceOfFile& piece, std::byte* target) {
    if (count_++ == 0) begin_ = MonotonicNs();
    file_.Begin(piece.page(), target, piece.nbytes());
  }
  int End() {
    const int error = file_.End();
    const int64_t end = MonotonicNs();
    busy_ns_ += end - std::exchange(begin_, end);
    --count_;
    return error;
  }
  int64_t busy_ns() const { return busy_ns_; }  // in which a read was in flight

 private:
  WeightsFile& file_;
  uint32_t count_ = 0;
  int64_t begin_ = 0, busy_ns_ = 0;
};

}  // namespace

void Session::MakeShared(uint64_t shareable) {
  RequireThisProcess();
  const std::lock_guard lock(mutex_);
  ArenaUse use(*this);
  std::byte* const place = sharing_.PlaceOf(shareable);
  if (place == nullptr) RaiseError("InputError", "the weights ", shareable, " are not shared");
  loader_->GiveUp();  // this thread reads into the working range meanwhile, and nobody else
  const Shareable& one = shareables_.all[shareable];
  const Layer& layer = current().layers[one.layer];
  const LayerWeights& weights = *layer.weights;
  const uint64_t room = current().rungs[rung_].working;
  const bool ahead = room / 2 >= one.room;
  const uint64_t most = ahead ? std::min(std::max(kMostRead, one.room), room / 2 / kPage * kPage) : room;
  const std::vector<PieceOfFile> pieces = Cut(layer, most);
  const auto target = [&](size_t piece) { return lane_.base + (ahead && piece % 2 == 1 ? most : 0); };

  Blake2b digest;
  uint64_t digested = weights.offset;
  Reads reads(*file_);
  for (size_t i = 0, begun = 0; i < pieces.size(); ++i) {
    if (interrupt_.load(std::memory_order_relaxed)) Raise("Stopped", "the inference was stopped");
    for (; begun < std::min(pieces.size(), i + (ahead ? 2 : 1)); ++begun) reads.Begin(pieces[begun], target(begun));
    const PieceOfFile& piece = pieces[i];
    if (const int error = reads.End(); error != 0) file_->RaiseReadError(piece.page(), error, "layer " + layer.name);
    ++made_.reads;
    made_.bytes += piece.nbytes();
    fetched_total_.fetch_add(piece.nbytes(), std::memory_order_relaxed);
    std::byte* const stored = target(i) + (piece.range.begin - piece.page());
    if (digested < piece.range.end) digest.Update(target(i) + (digested - piece.page()), piece.range.end - digested);
    digested = std::max(digested, piece.range.end);
    if (piece.count == 0) std::memcpy(place + (piece.range.begin - weights.offset), stored, piece.range.nbytes());
    else if (now().preparer.Prepare(one.layer, piece.first, piece.count, stored, place + piece.first * weights.block_nbytes) != 0)
      RaiseError("ExecutionError", "preparing weights failed: ", now().preparer.Fault({.layer = one.layer}));
  }
  made_.busy_ns += reads.busy_ns();
  file_->RequireUnchanged();
  if (digested != weights.offset + weights.stored_nbytes() || digest.Finish() != one.stored)
    RaiseError("StorageError", file_->name(), " does not hold the weights of layer ", layer.name,
               " that its library was built with: the file is damaged, or the library is wrong");
}

}  // namespace flexcomp

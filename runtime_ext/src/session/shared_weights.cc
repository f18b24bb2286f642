// Weights that a session makes where other sessions read them, too.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/blake2b.h"
#include "base/error.h"
#include "session/arena_use.h"
#include "session/session.h"

namespace flexcomp {
namespace {

constexpr uint64_t kMostRead = 1 << 20;  // two are in flight

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

// Makes the weights from address `room` on. Pieces are read into the bytes before, in turns to either half where both are large enough; a
// step takes the digest of a piece.
class MakingTape {
 public:
  MakingTape(const Shareable& shareable, const Layer& layer, uint64_t room) {
    const bool halves = room / 2 >= shareable.room;
    const uint64_t most = halves ? std::min(std::max(kMostRead, shareable.room), room / 2 / kPage * kPage) : room;
    for (const PieceOfFile& piece : Cut(layer, most)) {
      const auto number = static_cast<int32_t>(pieces_.size());
      const uint64_t to = halves && number % 2 == 1 ? most : 0, stored = to + (piece.range.begin - piece.page());
      Operation read{.after = std::max(0, halves ? number - 1 : number), .from = piece.page(), .to = to, .nbytes = piece.nbytes()};
      Operation make{.kind = Operation::Kind::kCopy, .after = read.after, .from = stored, .from_nbytes = piece.range.nbytes()};
      if (piece.count == 0) {
        make.to = room + (piece.range.begin - layer.weights->offset);
        make.nbytes = make.from_nbytes;
      } else {
        make.kind = Operation::Kind::kPrepare;
        make.to = room + piece.first * layer.weights->block_nbytes;
        make.nbytes = piece.count * layer.weights->block_nbytes;
        make.layer = shareable.layer, make.first = piece.first, make.count = piece.count;
      }
      read.load = make.load = static_cast<uint32_t>(number);
      operations_.insert(operations_.end(), {read, make});
      need_.push_back(static_cast<uint32_t>(operations_.size()) - 1);
      pieces_.push_back({piece.range, stored});
    }
    steps_.resize(pieces_.size());
  }

  struct Piece {
    FileRange range;
    uint64_t at;  // where it is read to
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  Tape tape() const { return {operations_, steps_, need_}; }

 private:
  std::vector<Piece> pieces_;
  std::vector<Operation> operations_;
  std::vector<Step> steps_;
  std::vector<uint32_t> need_;
};

}  // namespace

void Session::MakeShared(uint64_t shareable) {
  const ArenaUse use(*this);
  std::byte* const place = sharing_.PlaceOf(shareable);
  if (place == nullptr) RaiseError("InputError", "the weights ", shareable, " are not shared");
  const Shareable& one = shareables_.all[shareable];
  const Layer& layer = current().layers[one.layer];
  const uint64_t room = current().rungs[rung_].working;
  const MakingTape making(one, layer, room);
  const OtherTapes other(*this);
  now().preparer.Use(Places(lane_.base, place, room));
  loader_->Open({.first = making.tape()}, Places(lane_.base, place, room), room, {}, &now().preparer);
  loader_->Start();

  Blake2b digest;
  uint64_t digested = layer.weights->offset;
  bool done = true;
  for (uint32_t i = 0; done && i < making.pieces().size(); ++i) {
    done = loader_->Await(making.tape().need[i]);
    const auto& [range, at] = making.pieces()[i];
    if (done && digested < range.end) digest.Update(lane_.base + at + (digested - range.begin), range.end - digested);
    digested = std::max(digested, range.end);
    loader_->Computed(i + 1);
  }
  if (!done || !loader_->Finish()) RaiseInterrupted("shared weights were made");
  made_ += loader_->counts();
  if (digested != layer.weights->offset + layer.weights->stored_nbytes() || digest.Finish() != one.stored)
    RaiseError("StorageError", file_->name(), " does not hold the weights of layer ", layer.name,
               " that its library was built with: the file is damaged, or the library is wrong");
}

}  // namespace flexcomp

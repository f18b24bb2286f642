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

// Pairs that make the weights from address `room` on: a read of stored bytes to before that address, in turns to either half where
// both are large enough, and a copy or preparation of these bytes. Each read is followed by a step.
std::vector<Operation> OperationsFor(const Shareable& shareable, const Layer& layer, uint64_t room) {
  const LayerWeights& weights = *layer.weights;
  const bool halves = room / 2 >= shareable.room;
  const uint64_t most = halves ? std::min(std::max(kMostRead, shareable.room), room / 2 / kPage * kPage) : room;
  const auto pages_of = [](const FileRange& stored) { return FileRange{stored.begin / kPage * kPage, RoundUp(stored.end, kPage)}; };
  std::vector<Operation> operations;
  const auto add = [&](const FileRange& stored, const Operation& made) {
    const auto number = static_cast<int32_t>(operations.size() / 2);
    const FileRange pages = pages_of(stored);
    Operation read{.after = std::max(0, halves ? number - 1 : number), .from = pages.begin, .to = halves && number % 2 == 1 ? most : 0};
    read.nbytes = pages.nbytes();
    Operation make = made;
    make.after = read.after;
    make.from = read.to + (stored.begin - pages.begin);
    make.from_nbytes = stored.nbytes();
    read.load = make.load = static_cast<uint32_t>(number);
    operations.insert(operations.end(), {read, make});
  };
  const uint64_t block = weights.block_nbytes, all = weights.offset + weights.stored_nbytes();
  if (!weights.preparation) {
    for (uint64_t at = weights.offset, end; at < all; at = end) {
      end = std::min(all, at / kPage * kPage + most);
      add({at, end}, {.kind = Operation::Kind::kCopy, .to = room + (at - weights.offset), .nbytes = end - at});
    }
    return operations;
  }
  for (uint32_t first = 0, count; first < weights.blocks; first += count) {
    for (count = 1; first + count < weights.blocks && pages_of(StoredRange(layer, first, count + 1)).nbytes() <= most;) ++count;
    Operation make{.kind = Operation::Kind::kPrepare, .to = room + first * block, .nbytes = count * block};
    make.layer = shareable.layer, make.first = first, make.count = count;
    add(StoredRange(layer, first, count), make);
  }
  return operations;
}

}  // namespace

void Session::MakeShared(uint64_t shareable) {
  const ArenaUse use(*this);
  std::byte* const place = sharing_.PlaceOf(shareable);
  if (place == nullptr) RaiseError("InputError", "the weights ", shareable, " are not shared");
  const Shareable& one = shareables_.all[shareable];
  const Layer& layer = current().layers[one.layer];
  const uint64_t room = current().rungs[rung_].working;
  const std::vector<Operation> operations = OperationsFor(one, layer, room);
  const OtherTapes other(*this);
  now().preparer.Use(Places(lane_.base, place, room));
  loader_->Open({.first = {.operations = operations}}, Places(lane_.base, place, room), room, {}, &now().preparer);
  loader_->Start();

  Blake2b digest;
  uint64_t digested = layer.weights->offset;
  bool done = true;
  for (uint32_t i = 0; done && i < operations.size(); i += 2) {
    done = loader_->Await(i + 1);
    const Operation &read = operations[i], &make = operations[i + 1];
    const uint64_t begin = read.from + (make.from - read.to), end = begin + make.from_nbytes;
    if (done && digested < end) digest.Update(lane_.base + make.from + (digested - begin), end - digested);
    digested = std::max(digested, end);
    loader_->Computed(i / 2 + 1);
  }
  if (!done || !loader_->Finish()) RaiseInterrupted("shared weights were made");
  made_ += loader_->counts();
  if (digested != layer.weights->offset + layer.weights->stored_nbytes() || digest.Finish() != one.stored)
    RaiseError("StorageError", file_->name(), " does not hold the weights of layer ", layer.name,
               " that its library was built with: the file is damaged, or the library is wrong");
}

}  // namespace flexcomp

#include "kernels/kernel_preparer.h"

#include <algorithm>

namespace flexcomp {
namespace {

// Prepared by one call: some ten microseconds, so that threads that share the work end at about the same time.
constexpr uint64_t kPartNbytes = 64 << 10;

uint32_t BlocksOfPart(const Operation& operation) {
  const uint64_t block_nbytes = std::max<uint64_t>(operation.nbytes / operation.count, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kPartNbytes / block_nbytes, 1, operation.count));
}

}  // namespace

std::string TakeReason(TVMFFIObjectHandle raised) {
  if (raised == nullptr) return "no reason given";
  const TVMFFIByteArray& message = TVMFFIErrorGetCellPtr(raised)->message;
  std::string reason(message.data, message.size);
  TVMFFIObjectDecRef(raised);
  return reason;
}

KernelPreparer::~KernelPreparer() {
  if (const TVMFFIObjectHandle raised = raised_) TVMFFIObjectDecRef(raised);
}

uint32_t KernelPreparer::PartsOf(const Operation& operation) const noexcept {
  const uint32_t blocks = BlocksOfPart(operation);
  return (operation.count + blocks - 1) / blocks;
}

int KernelPreparer::Prepare(const Operation& operation, uint32_t part) noexcept {
  const Layer& layer = program_.layers[operation.layer];
  const uint32_t blocks = BlocksOfPart(operation), skipped = part * blocks, first = operation.first + skipped;
  const uint32_t count = std::min(blocks, operation.count - skipped);
  const uint64_t from = operation.from + StoredRange(layer, first, count).begin - StoredRange(layer, operation.first, operation.count).begin;
  std::byte* const to = arena_.At(operation.to + skipped * layer.weights->block_nbytes);
  DLTensor tensors[] = {MakeTensor(layer.weights->preparation->stored, arena_.At(from)), MakeTensor(PanelOf(layer)->type, to)};
  const TVMFFIAny args[] = {TensorArg(&tensors[0]), IntArg(first), IntArg(count), TensorArg(&tensors[1])};
  if (processor_.Prepare(kernels_.prepare[operation.layer], args, 4) == 0) return 0;
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  if (const TVMFFIObjectHandle before = raised_.exchange(raised)) TVMFFIObjectDecRef(before);
  return 1;
}

std::string KernelPreparer::Fault(const Operation& operation) {
  const Layer& layer = program_.layers[operation.layer];
  return "layer " + layer.name + " (" + layer.weights->preparation->kernel + "): " + TakeReason(raised_.exchange(nullptr));
}

}  // namespace flexcomp

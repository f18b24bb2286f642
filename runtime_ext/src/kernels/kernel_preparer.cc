#include "kernels/kernel_preparer.h"

#include <algorithm>

namespace flexcomp {

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

Preparer::Work KernelPreparer::WorkOf(uint32_t load) const noexcept {
  const PreparationCall& call = calls_.preparations()[load];
  return {(call.count + call.part - 1) / call.part, call.count * call.block_nbytes};
}

int KernelPreparer::Prepare(uint32_t load, uint32_t part) noexcept {
  const PreparationCall& call = calls_.preparations()[load];
  const Layer& layer = program_.layers[call.layer];
  const uint32_t skipped = part * call.part, first = call.first + skipped, count = std::min(call.part, call.count - skipped);
  const uint64_t stored = StoredRange(layer, first, count).begin - call.stored_from;
  DLTensor tensors[] = {MakeTensor(layer.weights->preparation->stored, call.stored + stored),
                        MakeTensor(*call.type, call.prepared + skipped * call.block_nbytes)};
  const TVMFFIAny args[] = {TensorArg(&tensors[0]), IntArg(first), IntArg(count), TensorArg(&tensors[1])};
  if (processor_.Prepare(call.kernel, args, 4) == 0) return 0;
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  if (const TVMFFIObjectHandle before = raised_.exchange(raised)) TVMFFIObjectDecRef(before);
  return 1;
}

std::string KernelPreparer::Fault(uint32_t load) {
  const Layer& layer = program_.layers[calls_.preparations()[load].layer];
  return "layer " + layer.name + " (" + layer.weights->preparation->kernel + "): " + TakeReason(raised_.exchange(nullptr));
}

}  // namespace flexcomp

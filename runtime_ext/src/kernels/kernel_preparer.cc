#include "kernels/kernel_preparer.h"

#include <utility>

namespace flexcomp {

std::string TakeReason(TVMFFIObjectHandle raised) {
  if (raised == nullptr) return "no reason given";
  const TVMFFIByteArray& message = TVMFFIErrorGetCellPtr(raised)->message;
  std::string reason(message.data, message.size);
  TVMFFIObjectDecRef(raised);
  return reason;
}

KernelPreparer::~KernelPreparer() {
  if (raised_ != nullptr) TVMFFIObjectDecRef(raised_);
}

int KernelPreparer::Prepare(uint32_t load) noexcept {
  const PreparationCall& call = calls_.preparations()[load];
  const int failed = processor_.Call(call.kernel, call.args, 4);
  if (raised_ != nullptr) TVMFFIObjectDecRef(std::exchange(raised_, nullptr));
  if (failed != 0) TVMFFIErrorMoveFromRaised(&raised_);
  return failed;
}

std::string KernelPreparer::Fault(uint32_t load) {
  const Layer& layer = program_.layers[calls_.preparations()[load].layer];
  return "layer " + layer.name + " (" + layer.weights->preparation->kernel + "): " + TakeReason(std::exchange(raised_, nullptr));
}

}  // namespace flexcomp

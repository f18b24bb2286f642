#include "cuda/deliveries.h"

namespace flexcomp::cuda {

bool CopiedDelivery::End(uint32_t steps) noexcept {
  refusal_ = order_.BeforeCopy(steps);
  if (refusal_) return ring_.Drop(), false;
  refusal_ = ring_.Copy();
  return !refusal_;
}

void CopiedDelivery::Settle() noexcept {
  device_.Settle();
  ring_.Clear();
}

}  // namespace flexcomp::cuda

#include "cuda/deliveries.h"

namespace flexcomp::cuda {

bool CopiedDelivery::End(uint32_t steps) noexcept {
  if (!Noted(order_.BeforeCopy(steps), refusal_)) return ring_.Drop(), false;
  return Noted(ring_.Copy(), refusal_);
}

}  // namespace flexcomp::cuda

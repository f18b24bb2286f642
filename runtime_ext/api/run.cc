// Inferences, budgets and states.
#include <flexcomp.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "api/budgets.h"
#include "api/members.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "api/tensors.h"
#include "base/error.h"

namespace flexcomp::api {

uint64_t BudgetOf(uint64_t given, const Shapes& shapes) {
  if (given == FLEXCOMP_BUDGET_DEFAULT) return shapes.Most(DefaultBudget);
  if (given == FLEXCOMP_BUDGET_SMALLEST) return shapes.Most([](const Program& program) { return program.rungs.front().budget; });
  return given;
}

namespace {

Session::PortsCallback CallerOf(flexcomp_callback callback, void* context, const Session& session) {
  if (callback == nullptr) return {};
  return [=, &session](std::span<DLTensor> ports) {
    std::vector<flexcomp_tensor> tensors;
    tensors.reserve(ports.size());
    for (const DLTensor& port : ports) {
      uint64_t nbytes = port.dtype.bits / 8;
      for (int32_t axis = 0; axis < port.ndim; ++axis) nbytes *= static_cast<uint64_t>(port.shape[axis]);
      tensors.push_back({sizeof(flexcomp_tensor), port.data, nbytes, port.shape, port.ndim, DtypeOf(port.dtype)});
    }
    const InCallback scope(&session, InCallback::kPorts);
    const flexcomp_status status = callback(context, tensors.data(), static_cast<uint32_t>(tensors.size()));
    if (status != FLEXCOMP_OK) throw Ended{status};
  };
}

// A caller's tensor as the only one of all states.
std::vector<const DLTensor*> OneOf(const Program& program, uint32_t index, const Bound& bound) {
  std::vector<const DLTensor*> tensors(program.states.size(), nullptr);
  tensors[index] = bound.tensors().front();
  return tensors;
}

}  // namespace
}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_run(flexcomp_session* session, const flexcomp_tensor* inputs, uint32_t input_count, const flexcomp_tensor* outputs,
                             uint32_t output_count) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpenedToWait(session);
    const api::Ports ports(found->shapes(), inputs, input_count, outputs, output_count);
    if (found->member != nullptr)
      found->member->Run(ports.inputs, ports.outputs);
    else
      found->session->Run(ports.inputs.tensors(), ports.outputs.tensors());
  });
}

flexcomp_status flexcomp_run_in_place(flexcomp_session* session, flexcomp_callback fill, flexcomp_callback drain, void* context) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    found->RunInPlace(api::CallerOf(fill, context, *found), api::CallerOf(drain, context, *found));
  });
}

flexcomp_status flexcomp_use_shape(flexcomp_session* session, uint32_t shape) {
  return api::Guarded([&] { api::FindToWait(session)->TakeShape(shape); });
}

flexcomp_status flexcomp_warm(flexcomp_session* session) {
  return api::Guarded([&] { api::FindToWait(session)->Warm(); });
}

flexcomp_status flexcomp_cancel(flexcomp_session* session) {
  return api::Guarded([&] { api::Cancel(session); });
}

flexcomp_status flexcomp_set_budget(flexcomp_session* session, uint64_t budget) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    found->SetBudget(api::BudgetOf(budget, found->shapes()));
  });
}

flexcomp_status flexcomp_get_state(flexcomp_session* session, uint32_t index, const flexcomp_tensor* tensor) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    found->GetStates(api::OneOf(found->program(), index, {found->program(), FLEXCOMP_STATE, tensor, 1, index}));
  });
}

flexcomp_status flexcomp_set_state(flexcomp_session* session, uint32_t index, const flexcomp_tensor* tensor) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    found->SetStates(api::OneOf(found->program(), index, {found->program(), FLEXCOMP_STATE, tensor, 1, index}));
  });
}

flexcomp_status flexcomp_reset_states(flexcomp_session* session) {
  return api::Guarded([&] { api::FindToWait(session)->ResetStates(); });
}

// Descriptions of tensors, budgets and past inferences.
#include <flexcomp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/budgets.h"
#include "api/members.h"
#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "api/tensors.h"
#include "base/error.h"

namespace flexcomp::api {
namespace {

template <typename Count>
flexcomp_status GiveCount(flexcomp_session* session, uint32_t* count, const Count& of) noexcept {
  return Guarded([&] {
    const std::shared_ptr<const Opened> found = FindOpened(session);
    RequirePointer(count, "count");
    *count = static_cast<uint32_t>(of(*found));
  });
}

flexcomp_stats StatsOf(Session& session) {
  const Session::State state = session.state();
  flexcomp_stats made{};
  made.runs = state.stats.runs;
  made.restarts = state.stats.restarts;
  made.total_bytes_read = state.stats.total_bytes_read;
  made.resident = session.ResidentArena();
  made.threads = state.placement.threads;
  made.direct = state.direct;
  const Loader::Counts& loads = state.stats.loads;
  made.bytes_read = loads.bytes;
  made.reads = loads.reads;
  made.latency_s = state.stats.latency_s;
  made.stall_s = state.stats.stall_s;
  made.read_s = SecondsOf(loads.busy_ns);
  made.prepared_bytes = loads.prepared_bytes;
  made.prepare_s = SecondsOf(loads.prepare_ns);
  made.help_s = SecondsOf(loads.help_ns);
  made.shape = static_cast<uint32_t>(state.shape);
  return made;
}

}  // namespace
}  // namespace flexcomp::api

using namespace flexcomp;

flexcomp_status flexcomp_shape_count(flexcomp_session* session, uint32_t* count) {
  return api::GiveCount(session, count, [](const api::Opened& opened) { return opened.shape_count(); });
}

flexcomp_status flexcomp_tensor_count(flexcomp_session* session, flexcomp_kind kind, uint32_t* count) {
  return api::GiveCount(session, count, [&](const api::Opened& opened) { return api::CountOf(opened.program(), kind); });
}

flexcomp_status flexcomp_describe_tensor(flexcomp_session* session, flexcomp_kind kind, uint32_t index, uint32_t shape,
                                         flexcomp_tensor_info* info) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    const api::Described described = api::At(found->program(shape), kind, index);
    const TensorType& type = described.type;
    flexcomp_tensor_info made{};
    made.name = described.name.c_str();
    made.shape = type.shape.data();
    made.rank = static_cast<int32_t>(type.shape.size());
    made.dtype = api::DtypeOf(type.dtype);
    made.nbytes = type.nbytes;
    if (const Padding* const padding = found->shapes().padding(); padding != nullptr && kind != FLEXCOMP_STATE) {
      const bool is_input = kind == FLEXCOMP_INPUT;
      made.open_axes = is_input ? padding->input_axes(index) : padding->output_axes(index);
      const auto names = is_input ? padding->input_names(index) : padding->output_names(index);
      if (!names.empty()) made.axis_names = names.data();
    }
    api::Give(info, made, offsetof(flexcomp_tensor_info, open_axes), "info");
  });
}

flexcomp_status flexcomp_find_shape(flexcomp_session* session, const flexcomp_tensor* inputs, uint32_t input_count, uint32_t* shape) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    api::RequirePointer(shape, "shape");
    *shape = static_cast<uint32_t>(api::FitOf(found->shapes(), inputs, input_count).shape);
  });
}

flexcomp_status flexcomp_output_shape(flexcomp_session* session, const flexcomp_tensor* inputs, uint32_t input_count, uint32_t output,
                                      int64_t* extents, int32_t rank) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    const Fit fit = api::FitOf(found->shapes(), inputs, input_count);
    const Program& program = found->shapes()[fit.shape];
    const std::string& name = api::At(program, FLEXCOMP_OUTPUT, output).name;
    const std::vector<int64_t>& shape = fit.output(program, output).shape;
    if (rank < 0 || static_cast<size_t>(rank) != shape.size())
      RaiseError("InputError", "output \"", name, "\" has ", shape.size(), " axes, and there is room for ", rank);
    if (rank > 0) api::RequirePointer(extents, "extents");
    std::ranges::copy(shape, extents);
  });
}

flexcomp_status flexcomp_find_tensor(flexcomp_session* session, flexcomp_kind kind, const char* name, uint32_t* index) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    api::RequirePointer(name, "name");
    api::RequirePointer(index, "index");
    const Program& program = found->program();
    const auto count = static_cast<uint32_t>(api::CountOf(program, kind));
    uint32_t at = 0;
    while (at < count && api::At(program, kind, at).name != name) ++at;
    if (at == count) RaiseError("InputError", "no tensor of this kind is called \"", name, "\"");
    *index = at;
  });
}

flexcomp_status flexcomp_budget_count(flexcomp_session* session, uint32_t shape, uint32_t* count) {
  return api::GiveCount(session, count, [&](const api::Opened& opened) { return opened.program(shape).rungs.size(); });
}

flexcomp_status flexcomp_describe_budget(flexcomp_session* session, uint32_t shape, uint32_t index, flexcomp_budget_info* info) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    const auto& rungs = found->program(shape).rungs;
    if (index >= rungs.size()) RaiseError("InputError", "there is no budget ", index, ": the network has ", rungs.size());
    const RungHead& rung = rungs[index];
    flexcomp_budget_info made{};
    made.budget = rung.budget;
    made.arena = rung.arena;
    made.working = rung.working;
    made.pinned = rung.pinned;
    made.streamed = rung.streamed;
    made.predicted_s = rung.predicted_s;
    api::Give(info, made, sizeof made, "info");
  });
}

flexcomp_status flexcomp_describe_session(flexcomp_session* session, flexcomp_session_info* info) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    Session& own = found->own();
    const Shapes& shapes = found->shapes();
    flexcomp_session_info made{};
    made.smallest = api::BudgetOf(FLEXCOMP_BUDGET_SMALLEST, shapes);
    made.usual = api::BudgetOf(FLEXCOMP_BUDGET_DEFAULT, shapes);
    for (const auto& program : shapes.programs()) made.all = std::max(made.all, program->rungs.back().budget);
    made.layer = found->layer.c_str();
    made.needs = found->needs.c_str();
    made.compute_cpus = found->compute_cpus.c_str();
    made.loader_cpus = found->loader_cpus.c_str();
    made.threads = own.state().placement.threads;
    api::Give(info, made, sizeof made, "info");
  });
}

flexcomp_status flexcomp_current_budget(flexcomp_session* session, uint32_t* index) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    api::RequirePointer(index, "index");
    *index = static_cast<uint32_t>(found->member != nullptr ? found->member->rung() : found->session->state().rung);
  });
}

flexcomp_status flexcomp_get_stats(flexcomp_session* session, flexcomp_stats* stats) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    const flexcomp_stats made = found->member != nullptr ? found->member->Stats() : api::StatsOf(*found->session);
    api::Give(stats, made, offsetof(flexcomp_stats, read_s), "stats");
  });
}

#include "model.h"

#include <algorithm>
#include <stdexcept>

#include "npy.h"

namespace flexcomp::runner {
namespace {

uint64_t NamedOr(const Budget& budget) {
  if (budget.nbytes) return *budget.nbytes;
  return budget.largest                       ? FLEXCOMP_BUDGET_ALL
         : budget.smallest || budget.fraction ? FLEXCOMP_BUDGET_SMALLEST
                                              : FLEXCOMP_BUDGET_DEFAULT;
}

SessionHandle Opened(const Arguments& arguments, uint64_t budget) {
  flexcomp_options options = OptionsOf(arguments);
  options.budget = budget;
  options.threads = arguments.threads;
  if (!arguments.weights.empty()) options.weights = arguments.weights.c_str();
  if (!arguments.compute_cpus.empty()) options.compute_cpus = arguments.compute_cpus.c_str();
  if (!arguments.loader_cpu.empty()) options.loader_cpus = arguments.loader_cpu.c_str();
  if (!arguments.trace.empty()) options.flags |= FLEXCOMP_TRACE;
  flexcomp_session* session;
  Require(flexcomp_open(arguments.model.c_str(), &options, &session));
  return SessionHandle(session);
}

}  // namespace

flexcomp_options OptionsOf(const Arguments& arguments) {
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  options.flags = (arguments.verify ? FLEXCOMP_VERIFY : 0) | (arguments.no_direct ? FLEXCOMP_PAGE_CACHE : 0) |
                  (arguments.no_affinity ? FLEXCOMP_NO_AFFINITY : 0) | (arguments.no_work_stealing ? FLEXCOMP_NO_WORK_STEALING : 0);
  options.read_bandwidth = arguments.read_bandwidth;
  return options;
}

Model::Model(const Arguments& arguments) : reset_state_(arguments.reset_state) {
  Open(arguments);
  Require(flexcomp_shape_count(session(), &shape_count_));
  inputs_ = PortsOf(session(), FLEXCOMP_INPUT, 0);
  ShapesByName given;
  if (shape_count_ > 1 || std::ranges::any_of(inputs_, [](const Port& port) { return !port.axes.empty(); })) {
    try {
      for (const auto& [name, path] : arguments.inputs) given[name] = NpyFile::ShapeOf(path);
    } catch (const std::runtime_error& error) {
      throw UsageError(error.what());
    }
  }
  Take(ShapeFor(given), given);
  uint32_t states;
  Require(flexcomp_tensor_count(session(), FLEXCOMP_STATE, &states));
  if (arguments.callers > 0 && states > 0)
    throw UsageError("--callers checks that every inference gives the same outputs, but those of this network depend on its state");
}

// A fraction is of what the library needs, and so is the message about a budget that is too small: both ask a session of the smallest.
void Model::Open(const Arguments& arguments) {
  const Budget& budget = arguments.budget;
  const uint64_t named = NamedOr(budget);
  try {
    session_ = Opened(arguments, named);
  } catch (const CallError& error) {
    if (error.status != FLEXCOMP_ERROR_BUDGET || named == FLEXCOMP_BUDGET_SMALLEST) throw;
    session_ = Opened(arguments, FLEXCOMP_BUDGET_SMALLEST);
    if (named >= info().smallest) throw;
  }
  const flexcomp_session_info needs = info();
  asked_ = budget.Bytes(needs.smallest, needs.usual, needs.all);
  if (asked_ < needs.smallest) throw std::runtime_error(TooSmall(asked_, needs, budget.units));
  if (budget.fraction) SetBudget(asked_);
}

uint32_t Model::ShapeFor(const ShapesByName& given) const {
  const auto ports = [&](uint32_t shape) { return Sized(PortsOf(session(), FLEXCOMP_INPUT, shape), inputs_, given); };
  const auto agrees = [&](const Port& port) { return !given.contains(port.name) || given.at(port.name) == port.shape; };
  uint32_t chosen = 0;  // the largest, where files do not say
  while (chosen + 1 < shape_count_ && !std::ranges::all_of(ports(chosen), agrees)) ++chosen;
  std::vector<Port> stated = ports(chosen);
  std::vector<flexcomp_tensor> tensors;
  for (Port& port : stated) {
    if (given.contains(port.name)) port.shape = given.at(port.name);
    tensors.push_back({sizeof(flexcomp_tensor), nullptr, 0, port.shape.data(), static_cast<int32_t>(port.shape.size()), FLEXCOMP_ANY});
  }
  uint32_t shape;
  Require(flexcomp_find_shape(session(), tensors.data(), static_cast<uint32_t>(tensors.size()), &shape));
  return shape;
}

void Model::Take(uint32_t shape, const ShapesByName& given) {
  if (shape_count_ > 1) Require(flexcomp_use_shape(session(), shape));
  const std::vector<Port> whole = PortsOf(session(), FLEXCOMP_INPUT, shape);
  inputs_ = Sized(whole, whole, given);
  std::vector<flexcomp_tensor> tensors;
  for (const Port& port : inputs_)
    tensors.push_back({sizeof(flexcomp_tensor), nullptr, 0, port.shape.data(), static_cast<int32_t>(port.shape.size()), FLEXCOMP_ANY});
  outputs_ = PortsOf(session(), FLEXCOMP_OUTPUT, shape);
  for (uint32_t i = 0; i < outputs_.size(); ++i) {
    std::vector<int64_t>& extents = outputs_[i].shape;
    Require(flexcomp_output_shape(session(), tensors.data(), static_cast<uint32_t>(tensors.size()), i, extents.data(), static_cast<int32_t>(extents.size())));
    outputs_[i].nbytes = NbytesOf(outputs_[i]);
  }
  padded_ = !std::ranges::equal(inputs_, whole, {}, &Port::shape, &Port::shape);
}

std::vector<flexcomp_budget_info> Model::Ladder() const {
  const uint32_t shape = Stats().shape;
  uint32_t count;
  Require(flexcomp_budget_count(session(), shape, &count));
  const uint64_t smallest = info().smallest;
  std::vector<flexcomp_budget_info> ladder;
  for (uint32_t i = 0; i < count; ++i) {
    const auto rung = Got<flexcomp_budget_info>(flexcomp_describe_budget, session(), shape, i);
    if (rung.budget >= smallest || i + 1 == count) ladder.push_back(rung);
  }
  return ladder;
}

uint32_t Model::rung() const {
  uint32_t index;
  Require(flexcomp_current_budget(session(), &index));
  return index;
}

flexcomp_budget_info Model::Plan() const {
  return Got<flexcomp_budget_info>(flexcomp_describe_budget, session(), Stats().shape, rung());
}

void Model::Run(const Inputs& inputs, const Look& look) const {
  if (reset_state_) Require(flexcomp_reset_states(session()));
  if (!padded_) {
    RunInPlace(session(), [&](Places places) { inputs.Fill(places); }, look);
    return;
  }
  const Tensors given(inputs_), results(outputs_);
  inputs.Fill(given.places());
  Require(flexcomp_run(session(), given.places().data(), static_cast<uint32_t>(inputs_.size()), results.places().data(),
                       static_cast<uint32_t>(outputs_.size())));
  if (look) look(results.places());
}

}  // namespace flexcomp::runner

// Safety of a program: nothing here judges whether the plan is good, only that the plan can do no harm.
#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "program/program.h"

namespace flexcomp {
namespace {

template <typename... Parts>
void Require(bool holds, const Parts&... parts) {
  if (!holds) RaiseError("ArtifactError", "the program is malformed: ", parts...);
}

// [at, at + nbytes) ⊆ [0, limit), without overflow.
bool Inside(uint64_t at, uint64_t nbytes, uint64_t limit) { return at <= limit && nbytes <= limit - at; }

// The arena's ranges: of all bytes that stay between inferences, and of all others. Those of models that take turns need not follow
// each other in memory.
enum class Range {
  kWorking,
  kKept,
  kEither
};

// Bytes at an aligned address inside one of the ranges. `lie`: what, and the verb.
template <typename... Lie>
void CheckPlace(const Rung& rung, uint64_t at, uint64_t nbytes, Range range, const Lie&... lie) {
  Require(at % kAlign == 0 && Inside(at, nbytes, rung.arena), lie..., " outside the arena");
  const bool stays = at >= rung.working, works = Inside(at, nbytes, rung.working);
  if (range == Range::kEither) Require(stays || works, lie..., " across the border of the arena's ranges");
  else Require(range == Range::kKept ? stays : works, lie..., " outside the range of ", range == Range::kKept ? "what stays" : "what inferences work in");
}

void CheckPorts(const std::vector<Port>& ports, const std::vector<Value>& values) {
  std::set<std::string_view> names;
  for (const Port& port : ports) {
    Require(names.insert(port.name).second, "two ports are called ", port.name);
    Require(port.value < values.size(), "port ", port.name, " refers to no value");
    Require(port.type.nbytes <= values[port.value].nbytes, "port ", port.name, " is larger than its value");
  }
}

// States lie in a value of their own, in whole pages, so that they can be carried from one arena to another.
void CheckStates(const Program& program) {
  std::set<std::string_view> inputs, outputs;
  for (const Port& port : program.inputs) inputs.insert(port.name);
  for (const Port& port : program.outputs) outputs.insert(port.name);
  uint64_t end = 0;
  for (const State& state : program.states) {
    const uint32_t value = program.states.front().value;
    Require(inputs.insert(state.input).second, "two inputs are called ", state.input);
    Require(outputs.insert(state.output).second, "two outputs are called ", state.output);
    Require(state.value == value && value < program.values.size() && program.values[value].nbytes % kPage == 0, "the state ",
            state.input, " does not lie where states do");
    Require(state.offset >= end && state.offset % kAlign == 0 && state.type.nbytes > 0 &&
                Inside(state.offset, state.type.nbytes, program.values[value].nbytes),
            "the state ", state.input, " lies in another one, or outside of what stays");
    end = state.offset + state.type.nbytes;
    Require(state.result < program.values.size() && state.type.nbytes <= program.values[state.result].nbytes,
            "the state ", state.input, " becomes nothing that has its size");
    for (const auto* ports : {&program.inputs, &program.outputs})
      for (const Port& port : *ports) Require(port.value != value, "port ", port.name, " lies where states do");
  }
}

// Bounds are for integers of 32 or 64 bits that the kernel reads, and come round evenly.
void CheckBounds(const Arg& arg, const Layer& layer) {
  if (arg.bounds.empty()) return;
  const bool integers = arg.type.dtype.code == kDLInt && (arg.type.dtype.bits == 32 || arg.type.dtype.bits == 64);
  const uint64_t elements = integers ? arg.type.nbytes / (arg.type.dtype.bits / 8) : 0;
  Require(integers && !arg.written && elements % arg.bounds.size() == 0, "the bounds of an argument of layer ", layer.name,
          " do not fit it");
  for (const Bound& bound : arg.bounds) Require(bound.low < bound.high, "layer ", layer.name, " has empty bounds");
}

// One exchanged argument is all of a state that becomes itself. The same call again must find everything that this one
// did, so the layer takes only arguments that stay.
void CheckExchange(const Layer& layer, const Program& program) {
  uint64_t exchanged = 0, states = 0;
  for (const Arg& arg : layer.args) {
    Require(arg.kind == ArgKind::kValue && arg.written == 0 && !arg.over, "layer ", layer.name, " exchanges, and takes what does not stay");
    if (!arg.exchanged) continue;
    ++exchanged;
    states += std::ranges::count_if(program.states, [&](const State& state) {
      return state.exchanged() && state.value == arg.value && state.offset == arg.offset && state.type.nbytes == arg.type.nbytes;
    });
  }
  Require(exchanged == 2 && states == 1, "layer ", layer.name, " exchanges something else than parts of a state");
}

// The parts of every row of a block lie inside the block, and have as many bytes as a row.
bool MadeOfParts(const RowsTable& table, uint64_t row_nbytes) {
  uint64_t left = row_nbytes;
  for (const Strided& part : table.parts) {
    if (part.nbytes == 0 || part.count == 0 || part.count > left / part.nbytes) return false;
    left -= part.count * part.nbytes;
    if (part.count * part.nbytes > table.block_nbytes / table.lanes ||
        !Inside(part.at, part.count * part.nbytes * table.lanes, table.block_nbytes))
      return false;
  }
  return left == 0;
}

// Rows are fetched by the integers before them, from within the file.
void CheckRows(const Layer& layer, const Program& program) {
  size_t fetched = 0;
  for (size_t i = 0; i < layer.args.size(); ++i) {
    const Arg& arg = layer.args[i];
    if (arg.kind != ArgKind::kRows) continue;
    const Arg* ids = i > 0 ? &layer.args[i - 1] : nullptr;
    const bool numbers = ids != nullptr && ids->kind == ArgKind::kValue && ids->written == 0 && !ids->exchanged &&
                         ids->type.dtype.code == kDLInt && (ids->type.dtype.bits == 32 || ids->type.dtype.bits == 64);
    Require(numbers && ids->type.nbytes / (ids->type.dtype.bits / 8) == static_cast<uint64_t>(arg.type.shape[0]), "layer ",
            layer.name, " fetches rows by no numbers");
    const uint64_t data = program.weights.data_nbytes;
    const RowsTable& table = arg.table;
    Require(table.rows > 0 && table.rows <= INT64_MAX && table.at % kAlign == 0 && table.block_nbytes > 0 &&
                table.blocks() <= data / table.block_nbytes && Inside(table.at, table.blocks() * table.block_nbytes, data),
            "the table of layer ", layer.name, " lies outside the file");
    Require(table.lanes <= table.rows && MadeOfParts(table, arg.row_nbytes()), "layer ", layer.name, " fetches rows of no table");
    Require(++fetched == 1, "layer ", layer.name, " fetches rows of two tables");
  }
}

// A kernel that takes blocks is told which, once, after its only weights.
void CheckBlocks(const Layer& layer) {
  size_t weights = 0, panels = 0;
  for (size_t i = 0; i < layer.args.size(); ++i) {
    const ArgKind kind = layer.args[i].kind, before = i > 0 ? layer.args[i - 1].kind : ArgKind::kValue;
    weights += kind == ArgKind::kWeight;
    panels += kind == ArgKind::kFirst;
    Require((kind != ArgKind::kFirst || (before == ArgKind::kWeight && !layer.args[i - 1].type.shape.empty())) &&
                (kind == ArgKind::kCount) == (before == ArgKind::kFirst),
            "layer ", layer.name, " takes blocks of no weights");
  }
  Require(layer.args.empty() || layer.args.back().kind != ArgKind::kFirst, "layer ", layer.name, " takes blocks without end");
  Require(panels == 0 || (panels == 1 && weights == 1), "layer ", layer.name, " takes blocks of several weights");
}

// Prepared blocks and stored ones are the same channels, so many in each; the last block ends with the last channel.
void CheckPreparation(const Layer& layer) {
  const Preparation& preparation = *layer.weights->preparation;
  const Arg* panel = PanelOf(layer);
  const auto holds_all = [&](const std::vector<int64_t>& shape) {
    return shape.size() > 1 && shape.back() > 0 && shape.back() <= preparation.channels &&
           shape.front() == (preparation.channels + shape.back() - 1) / shape.back();
  };
  Require(panel != nullptr && preparation.channels <= INT32_MAX && holds_all(panel->type.shape) &&
              holds_all(preparation.stored.shape) && preparation.stored.nbytes > 0 && preparation.block_nbytes() % kAlign == 0,
          "the weights of layer ", layer.name, " cannot be prepared from what is stored");
}

void CheckLayer(const Layer& layer, const Program& program) {
  CheckBlocks(layer);
  const bool by_host = (layer.weights && layer.weights->preparation) ||
                       std::ranges::any_of(layer.args, [](const Arg& arg) { return arg.kind == ArgKind::kRows; });
  Require(!by_host || !program.on_cuda, "layer ", layer.name, " has its weights prepared or fetched in the memory of a GPU");
  if (layer.exchanges()) CheckExchange(layer, program);
  CheckRows(layer, program);
  if (layer.weights) {
    const LayerWeights& weights = *layer.weights;
    if (weights.preparation) CheckPreparation(layer);
    Require(weights.offset % kAlign == 0 && Inside(weights.offset, weights.stored_nbytes(), program.weights.data_nbytes),
            "the weights of layer ", layer.name, " lie outside the file");
    Require(weights.blocks == 1 || weights.block_nbytes % kAlign == 0, "layer ", layer.name, " has unaligned blocks");
  }
  for (size_t i = 0; i < layer.args.size(); ++i) {
    const Arg& arg = layer.args[i];
    if (arg.kind != ArgKind::kValue) continue;
    Require(arg.value < program.values.size() && arg.offset % kAlign == 0 &&
                Inside(arg.offset, arg.type.nbytes, program.values[arg.value].nbytes),
            "layer ", layer.name, " looks at more than a value");
    Require(arg.written <= arg.type.nbytes, "layer ", layer.name, " writes more than its result");
    CheckBounds(arg, layer);
    for (size_t other = 0; other < layer.args.size(); ++other) {
      const Arg& near = layer.args[other];
      Require(other == i || (arg.written == 0 && !arg.exchanged) || near.kind != ArgKind::kValue || near.value != arg.value ||
                  near.offset >= arg.offset + arg.type.nbytes || arg.offset >= near.offset + near.type.nbytes,
              "layer ", layer.name, " uses what it writes");
    }
  }
}

void CheckStep(const Step& step, size_t index, const Rung& rung, const Program& program) {
  Require(step.layer < program.layers.size(), "step ", index, " refers to no layer");
  const Layer& layer = program.layers[step.layer];
  Require(step.count > 0 && step.count <= INT32_MAX && step.first <= INT32_MAX, "step ", index, " has no blocks");
  if (layer.weights) {
    Require(Inside(step.first, step.count, layer.weights->blocks), "step ", index, " has more blocks than layer ", layer.name);
    CheckPlace(rung, step.weights_at, step.count * layer.weights->block_nbytes, Range::kEither, "the weights of step ", index, " lie");
  } else {
    Require(step.first == 0 && step.count == 1, "step ", index, " cuts layer ", layer.name, ", which has no weights");
    Require(step.weights_at == -1, "step ", index, " has a place for weights that layer ", layer.name, " does not have");
  }
  if (layer.scratch_nbytes > 0) {
    CheckPlace(rung, step.scratch_at, layer.scratch_nbytes, Range::kWorking, "the scratch of step ", index, " lies");
  } else {
    Require(step.scratch_at == -1, "step ", index, " has a place for scratch that layer ", layer.name, " does not have");
  }
}

// Those that the rung uses have a place: step_check.cc looks at uses.
void CheckValues(const Rung& rung, const Program& program) {
  for (size_t v = 0; v < rung.value_at.size(); ++v) {
    const int64_t at = rung.value_at[v];
    if (at == -1) continue;
    const bool stays = !program.states.empty() && program.states.front().value == v;
    CheckPlace(rung, at, program.values[v].nbytes, stays ? Range::kKept : Range::kWorking, "value ", program.values[v].name, " lies");
  }
  Require(program.states.empty() || rung.value_at[program.states.front().value] % kPage == 0, "the states of budget ", rung.budget,
          " do not begin with a page");
}

// The operation can do no harm wherever it stands: it reads the file or the arena, and writes to one range of the arena, but not
// over states.
void CheckOperation(const Operation& operation, const Rung& rung, const Program& program) {
  const uint32_t load = operation.load;
  Require(operation.nbytes > 0, "load ", load, " brings nothing");
  Require(operation.from % kAlign == 0 && operation.to % kAlign == 0, "load ", load, " is not aligned");
  const char* const what = operation.kind == Operation::Kind::kPrepare ? "what is prepared by load " : "load ";
  CheckPlace(rung, operation.to, operation.nbytes, Range::kEither, what, load, " lies");
  if (!program.states.empty()) {
    const uint32_t value = program.states.front().value;
    const auto at = static_cast<uint64_t>(rung.value_at[value]);
    Require(operation.to + operation.nbytes <= at || at + program.values[value].nbytes <= operation.to, "load ", load, " lies over states");
  }
  if (operation.kind == Operation::Kind::kRead) {
    Require(Inside(operation.from, operation.nbytes, RoundUp(program.weights.data_nbytes, kPage)), "load ", load,
            " lies outside the weights file");
    return;
  }
  Require(!program.on_cuda, "load ", load, " is copied or prepared in the memory of a GPU");
  CheckPlace(rung, operation.from, operation.from_nbytes, Range::kEither, "the source of load ", load, " lies");
  Require(operation.from + operation.from_nbytes <= operation.to || operation.to + operation.nbytes <= operation.from, "load ", load,
          " is written over its source");
}

// The indices of a tape, and when its operations begin. `index` is that of the tape in the rung.
void CheckTape(size_t index, const Rung& rung) {
  const Rung::TapeRange& tape = rung.tapes[index];
  const bool from_nothing = index == Rung::kFirst || index == Rung::kFill, computes = tape.need_begin < tape.need_end;
  const int64_t steps = computes ? static_cast<int64_t>(rung.steps.size()) : 0;
  uint64_t operations = 0;
  bool ahead = computes && !from_nothing;
  for (uint32_t r = tape.runs_begin; r < tape.runs_end; ++r) {
    const Run& run = rung.runs[r];
    Require(Inside(run.operation, run.count, rung.operations.size()), "a tape has an operation that does not exist");
    operations += run.count;
    if (run.count == 0) continue;
    const std::span of(&rung.operations[run.operation], run.count);
    ahead = ahead && run.after < 0;
    Require(run.after >= 0 || ahead, "load ", of.front().load, " cannot be read ahead");
    Require(run.after <= steps && run.after >= -steps - 1, "load ", of.front().load, " waits for a step that does not exist");
    const bool anytime = std::ranges::any_of(of, [](const Operation& one) { return one.after == Operation::kAnytime; });
    Require(!anytime || from_nothing, "load ", of.front().load, " is read at any time, where something lies in its place");
  }
  Require(operations <= rung.operations.size(), "a tape has more operations than there are");
  for (uint32_t i = tape.need_begin; i < tape.need_end; ++i)
    Require(rung.need[i] <= operations, "step ", i - tape.need_begin, " waits for a load that does not exist");
}

void CheckTapes(const Rung& rung, const Program& program) {
  for (size_t i = 0; i < rung.operations.size(); ++i) {
    const uint32_t load = rung.operations[i].load, before = i > 0 ? rung.operations[i - 1].load : 0;
    Require(load == before || (i > 0 && load == before + 1), "loads do not follow each other");
    CheckOperation(rung.operations[i], rung, program);
  }
  for (size_t i = 0; i < Rung::kTapes; ++i) CheckTape(i, rung);
}

// The first inference computes the same layers, or others by other kernels: the values are checked with its tape.
void CheckFirstSteps(const Rung& rung, const Program& program) {
  for (size_t i = 0; i < rung.first_steps.size(); ++i) {
    const FirstStep& first = rung.first_steps[i];
    Require(first.number < rung.steps.size(), "a first inference has a step that does not exist");
    Require(i == 0 || rung.first_steps[i - 1].number < first.number, "the steps of a first inference do not ascend");
    CheckStep(first.step, first.number, rung, program);
  }
}

}  // namespace

const Arg* PanelOf(const Layer& layer) {
  for (size_t i = 0; i + 1 < layer.args.size(); ++i)
    if (layer.args[i].kind == ArgKind::kWeight && layer.args[i + 1].kind == ArgKind::kFirst) return &layer.args[i];
  return nullptr;
}

void FindSizes(Operation& operation, const Program& program) {
  const uint32_t load = operation.load;
  Require(operation.layer < program.layers.size() && program.layers[operation.layer].weights &&
              program.layers[operation.layer].weights->preparation,
          "load ", load, " prepares no weights");
  const Layer& layer = program.layers[operation.layer];
  Require(operation.count > 0 && Inside(operation.first, operation.count, layer.weights->blocks), "load ", load,
          " prepares more blocks than layer ", layer.name, " has");
  operation.nbytes = operation.count * layer.weights->block_nbytes;
  operation.from_nbytes = StoredRange(layer, operation.first, operation.count).nbytes();
}

FileRange StoredRange(const Layer& layer, uint32_t first, uint32_t count) {
  const Preparation& preparation = *layer.weights->preparation;
  const auto channels = static_cast<uint64_t>(preparation.channels);
  const auto stored = static_cast<uint64_t>(preparation.stored.shape.back());
  const auto block = static_cast<uint64_t>(PanelOf(layer)->type.shape.back());
  const uint64_t last_begin = channels - block, blocks = preparation.blocks();
  const uint64_t begin = std::min(first * block, last_begin);
  const uint64_t end = std::min((first + uint64_t{count} - 1) * block, last_begin) + block;
  const uint64_t low = std::min(begin / stored, blocks - 1), high = (end + stored - 1) / stored;
  const uint64_t nbytes = preparation.block_nbytes();
  return {layer.weights->offset + low * nbytes, layer.weights->offset + high * nbytes};
}

void ValidateProgram(const Program& program) {
  const WeightsDigest& weights = program.weights;
  Require(weights.header_nbytes >= kPage && weights.header_nbytes % kPage == 0 &&
              weights.file_nbytes >= weights.header_nbytes && weights.file_nbytes <= INT64_MAX - kPage &&
              weights.file_nbytes - weights.header_nbytes == weights.data_nbytes,
          "the sizes of the weights file disagree");
  uint64_t end = 0;
  for (const Checksum& sum : weights.checksums) {
    Require(sum.offset == end && Inside(sum.offset, sum.nbytes, weights.data_nbytes), "checksums do not follow each other");
    end = sum.offset + sum.nbytes;
  }
  Require(end == weights.data_nbytes, "checksums end at byte ", end, " of ", weights.data_nbytes);
  CheckPorts(program.inputs, program.values);
  CheckPorts(program.outputs, program.values);
  for (size_t i = 0; i < program.inputs.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      Require(program.inputs[i].value != program.inputs[k].value, "inputs ", program.inputs[k].name, " and ",
              program.inputs[i].name, " are one value");
  CheckStates(program);
  for (const Layer& layer : program.layers) CheckLayer(layer, program);

  Require(!program.rungs.empty(), "it has no plan");
  for (size_t r = 0; r < program.rungs.size(); ++r) {
    const RungHead& rung = program.rungs[r];
    Require(r == 0 || program.rungs[r - 1].budget < rung.budget, "budgets do not ascend");
    Require(rung.arena > 0 && rung.arena % kPage == 0 && rung.arena <= rung.budget && rung.arena <= PTRDIFF_MAX,
            "the arena of budget ", rung.budget, " does not fit");
    Require(rung.working % kPage == 0 && rung.working <= rung.arena, "the ranges of the arena of budget ", rung.budget,
            " are no parts of it");
    // Counters reserve their topmost values for failure.
    Require(rung.steps < INT32_MAX && rung.operations < INT32_MAX, "too many steps or loads");
  }
}

void ValidatePlan(const Rung& rung, const Program& program) {
  for (size_t i = 0; i < rung.steps.size(); ++i) CheckStep(rung.steps[i], i, rung, program);
  CheckFirstSteps(rung, program);
  CheckValues(rung, program);
  CheckTapes(rung, program);
}

}  // namespace flexcomp

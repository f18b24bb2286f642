// The decoded program; the same records as flexcomp/program/program.py, which explains the fields.
#pragma once

#include <dlpack/dlpack.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/pages.h"
#include "program/tape.h"

namespace flexcomp {

struct TensorType {
  DLDataType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // compact; kernels and DLPack want them spelt out
  uint64_t nbytes;

  bool operator==(const TensorType& other) const {  // of whole elements of one lane
    return dtype.code == other.dtype.code && dtype.bits == other.dtype.bits && shape == other.shape;
  }
};

struct Value {
  std::string name;
  uint64_t nbytes;
};

struct Port {
  std::string name;
  uint32_t value;
  TensorType type;
};

// An input that the network gives itself: the contents of `result` at the end of an inference are copied to the input's
// place in the next one, or a layer has exchanged bytes of the state, or it stays as it was set. All states lie in one
// value, of nobody else, whose bytes stay.
struct State {
  std::string input, output;
  uint32_t value;
  uint64_t offset;  // bytes from the start of the value
  uint32_t result;  // `value`: a layer exchanges, or none does
  TensorType type;

  bool exchanged() const { return result == value; }  // or unchanged
};

// Of the integers in a tensor: low <= value < high.
struct Bound {
  int64_t low, high;
};

enum class ArgKind : uint8_t {
  kValue = 0,
  kWeight = 1,
  kScratch = 2,
  kFirst = 3,
  kCount = 4,
  kRows = 5,
  kValid = 6
};

// Elements of every row of a block of `lanes` rows: element i of row j lies at at + (i * lanes + j) * nbytes.
struct Strided {
  uint64_t at;      // bytes from the start of the block
  uint32_t nbytes;  // of an element
  uint64_t count;
};

// A table in the file, in blocks of interleaved rows. The last block ends with the last row.
struct RowsTable {
  uint64_t at = 0;    // byte of the data section
  uint64_t rows = 0;
  uint64_t block_nbytes = 0;
  uint64_t lanes = 1;  // rows of a block
  std::vector<Strided> parts{};  // a row: the elements of all, one after the other

  uint64_t blocks() const { return rows / lanes + (rows % lanes != 0); }
};

struct Arg {
  ArgKind kind;
  uint32_t value = 0;    // kValue
  uint64_t written = 0;  // kValue: bytes that the kernel writes; 0: reads, or exchanges
  bool exchanged = false;  // kValue that is read, too: its bytes become those of the other argument that is exchanged, and the other way round
  bool over = false;     // kValue that is read: the layer's only result may overwrite the value
  uint64_t offset = 0;   // kValue, kWeight, kScratch, kRows: in the scratch
  TensorType type{};     // all but kFirst, kCount, kValid
  // kRows: in the scratch, for each number of the argument before this one, that row of a table in the file; then room
  // to read a block.
  RowsTable table{};
  uint64_t row_nbytes() const { return type.nbytes / static_cast<uint64_t>(type.shape[0]); }
  std::vector<Bound> bounds{};  // kValue that is read: of element i the one at i modulo their number; none: anything may stand in it
};

// Bytes of scratch that rows take with the room to read a block, at any position of the block in the file and of the scratch
// in memory.
constexpr uint64_t RoomForRows(uint64_t nbytes, uint64_t block_nbytes) {
  return RoundUp(nbytes, kAlign) + (block_nbytes / kPage + 3) * kPage;
}

struct Preparation {
  std::string kernel;
  TensorType stored;
  uint32_t channels;

  uint32_t blocks() const { return static_cast<uint32_t>(stored.shape.front()); }
  uint64_t block_nbytes() const { return stored.nbytes / blocks(); }
};

struct LayerWeights {
  uint64_t offset;
  uint32_t blocks;
  uint64_t block_nbytes;
  std::optional<Preparation> preparation{};

  uint64_t nbytes() const { return blocks * block_nbytes; }
  uint64_t stored_nbytes() const { return preparation ? preparation->stored.nbytes : nbytes(); }
};

struct Layer {
  std::string name, op, kernel, implementation, description;
  uint64_t flops;
  uint64_t scratch_nbytes;
  std::optional<LayerWeights> weights;
  std::vector<Arg> args;

  // Whether the step writes into a state and keeps the old contents in its other arguments: the same call again undoes
  // the exchange.
  bool exchanges() const {
    for (const Arg& arg : args)
      if (arg.exchanged) return true;
    return false;
  }
};

// A step that the first inference computes instead of the one with this number.
struct FirstStep {
  uint32_t number;
  Step step;
};

// Neighbours in a rung's table of operations, which all begin after as many steps.
struct Run {
  uint32_t operation, count;
  int32_t after;
};

// The facts of a rung that are known before its plan is decoded.
struct RungHead {
  uint64_t budget, arena;
  uint64_t working;  // bytes of the arena, from its start; bytes that stay between inferences follow
  double predicted_s;
  uint64_t pinned, streamed;    // bytes of weights, for people: that stay between inferences, and that each reads
  uint32_t steps, operations, runs, first_steps;  // their numbers
  uint32_t crc;
  std::string_view plan;  // encoded
};

// With its plan.
struct Rung {
  explicit Rung(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : value_at(memory), steps(memory), first_steps(memory), operations(memory), runs(memory), need(memory) {}

  // Of a tape: the places of its lists in those of the rung.
  struct TapeRange {
    uint32_t runs_begin = 0, runs_end = 0, need_begin = 0, need_end = 0;
  };
  enum : size_t {
    kFirst,
    kFill,
    kSteady,
    kSecond,
    kSettle,
    kTapes,
    kComputing = 3
  };

  // Calls with each operation of a tape, as the table has it: without `after`.
  template <typename Function>
  void ForOperations(size_t tape, const Function& function) const {
    for (uint32_t r = tapes[tape].runs_begin; r < tapes[tape].runs_end; ++r)
      for (uint32_t i = 0; i < runs[r].count; ++i) function(operations[runs[r].operation + i]);
  }

  uint64_t budget = 0, arena = 0, working = 0;  // as in the head
  std::pmr::vector<int64_t> value_at;  // -1: no step of the rung uses the value
  std::pmr::vector<Step> steps;
  std::pmr::vector<FirstStep> first_steps;      // numbers ascend
  std::pmr::vector<Operation> operations;       // the table; without `after`, but for those at any time
  std::pmr::vector<Run> runs;                   // of all tapes
  std::pmr::vector<uint32_t> need;              // of all tapes
  TapeRange tapes[kTapes] = {};
  uint32_t loads = 0;  // their number, for people
};

struct Checksum {
  uint64_t offset, nbytes;
  uint32_t crc;
};

struct WeightsDigest {
  uint64_t file_nbytes, header_nbytes;
  uint32_t header_crc;
  uint64_t data_nbytes;
  std::vector<Checksum> checksums;  // one after the other, of all bytes
};

class Plans;

struct Program {
  Program();
  Program(Program&&) noexcept;
  ~Program();

  // Decodes and validates the plan of a rung, unless done before, in memory that was found when the program was read.
  // Any thread may call this. Throws ArtifactError.
  const Rung& Decode(size_t rung) const;
  // Of a rung that is decoded.
  const Rung& plan(size_t rung) const noexcept;

  std::string model, target;
  std::vector<std::string> features;
  uint32_t threads;
  std::map<std::string, std::string> metadata;
  WeightsDigest weights;
  std::vector<Value> values;
  std::vector<Port> inputs, outputs;
  std::vector<State> states;
  std::vector<Layer> layers;
  std::vector<RungHead> rungs;  // ascending by budget; at least one
  std::unique_ptr<Plans> plans;
  bool on_cuda = false;     // a GPU computes, and the arena is its memory; symbols of kernels are data
};

// Decodes and validates all but the plans. `bytes` must outlive the program. Throws ArtifactError.
Program ReadProgram(std::string_view bytes);
Program ReadProgram(std::string&& bytes) = delete;
// Decodes and validates a plan: after this, no index, address or wait of the rung can go wrong, whatever the bytes
// were, if its kernels take the layers' arguments: SymbolOf (signature.h) sees to that. PlanChecker checks the contents
// of the arena over time, before execution. `rung` is empty before, and takes all memory. Throws ArtifactError.
void ReadPlan(const RungHead& head, const Program& program, Rung& rung);

// The parts of both that look at meaning; throw ArtifactError with the first fault.
void ValidateProgram(const Program& program);
void ValidatePlan(const Rung& rung, const Program& program);

// That of the rung that the build noted, or else of the largest (Program.default_budget).
uint64_t DefaultBudget(const Program& program);
// The largest rung within a budget. Throws BudgetError.
size_t RungFor(const Program& program, uint64_t budget);

// Of all rungs.
struct Most {
  uint32_t steps = 0, operations = 0, first_steps = 0;
};
Most MostOf(const Program& program);
// The most that any layer has of the arguments that `is` takes.
template <typename Is>
size_t MostArgs(const Program& program, const Is& is) {
  size_t most = 0;
  for (const Layer& layer : program.layers) most = std::max<size_t>(most, std::ranges::count_if(layer.args, is));
  return most;
}

struct FileRange {
  uint64_t begin, end;

  uint64_t nbytes() const { return end - begin; }
};

// Decodes and validates all plans, checks their tapes, and keeps none: the contents of the arena over time, and whether the heads' figures
// are true; the indices of the program and the bounds of the arena are known to be right. Throws ArtifactError.
void CheckPlans(const Program& program);

// Bytes of the data section that blocks of a layer, whose weights are prepared, are made of.
FileRange StoredRange(const Layer& layer, uint32_t first, uint32_t count);

// Checks the layer and the blocks of an operation that prepares, and finds its bytes. Throws ArtifactError.
void FindSizes(Operation& operation, const Program& program);

// The argument that is a layer's panel, whose blocks go to its steps; nullptr: no panel.
const Arg* PanelOf(const Layer& layer);

// "float32[1×3×224×224]", for messages.
std::string ToString(const TensorType& type);
std::string DtypeName(DLDataType dtype);

}  // namespace flexcomp

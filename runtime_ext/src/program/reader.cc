// Reads the program. The grammar stands in flexcomp/program/program_bytes.py, the authority.
#include <cmath>
#include <cstring>
#include <optional>

#include "base/crc32.h"
#include "base/error.h"
#include "program/format.h"
#include "program/plans.h"
#include "program/program.h"

namespace flexcomp {
namespace {

constexpr std::string_view kMagic = "FLEXPROG";
constexpr size_t kCrcStart = 16;   // the checksum covers everything from `size` to the plans
constexpr size_t kBodyStart = 32;
constexpr uint32_t kMaxDims = 32;
constexpr uint64_t kMostTensorNbytes = uint64_t{1} << 60;

// Names end up in messages and in JSON, whose readers insist on UTF-8.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80         ? 1
                          : lead >> 5 == 0x6  ? 2
                          : lead >> 4 == 0xE  ? 3
                          : lead >> 3 == 0x1E ? 4
                                              : 0;
    if (length == 0 || length > text.size() - i) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 0x2) return false;
      code = code << 6 | (next & 0x3F);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += length;
  }
  return true;
}

// A cursor that cannot leave the bytes.
class Cursor {
 public:
  // Of the plan for this budget, or of all but the plans.
  explicit Cursor(std::string_view bytes, std::optional<uint64_t> budget = {}) : bytes_(bytes), budget_(budget) {}

  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string Text() {
    const uint32_t nbytes = Get<uint32_t>();
    std::string text(Take(nbytes), nbytes);
    if (!IsUtf8(text)) Raise("ArtifactError", "the program is malformed: a name is not UTF-8");
    return text;
  }
  // Reads the items of a list. Every item takes at least `item_nbytes`, so a wild count fails here instead of reserving
  // memory.
  template <typename ReadItem>
  auto List(size_t item_nbytes, ReadItem read) {
    return Repeat(Get<uint32_t>(), item_nbytes, read);
  }
  template <typename ReadItem>
  auto Repeat(size_t count, size_t item_nbytes, ReadItem read) {
    std::vector<decltype(read())> items;
    Repeat(count, item_nbytes, items, read);
    return items;
  }
  template <typename Items, typename ReadItem>
  void Repeat(size_t count, size_t item_nbytes, Items& items, ReadItem read) {
    if (count > left() / item_nbytes) Fail();
    items.reserve(count);
    for (size_t i = 0; i < count; ++i) items.push_back(read());
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  const char* Take(size_t nbytes) {
    if (nbytes > left()) Fail();
    const char* taken = bytes_.data() + at_;
    at_ += nbytes;
    return taken;
  }
  [[noreturn]] void Fail() const {
    RaiseError("ArtifactError", "the program is malformed: a record at byte ", at_, " ends behind ",
               budget_ ? "the plan for " + std::to_string(*budget_) + " bytes" : "the program");
  }

  std::string_view bytes_;
  const std::optional<uint64_t> budget_;
  size_t at_ = 0;
};

TensorType ReadType(Cursor& in) {
  TensorType type;
  type.dtype.code = in.Get<uint8_t>();
  type.dtype.bits = in.Get<uint8_t>();
  type.dtype.lanes = in.Get<uint16_t>();
  if (type.dtype.lanes != 1 || type.dtype.bits == 0 || type.dtype.bits % 8 != 0)
    Raise("ArtifactError", "the program is malformed: an element type is not a whole number of bytes");
  type.shape = in.List(8, [&] { return in.Get<int64_t>(); });
  if (type.shape.size() > kMaxDims) Raise("ArtifactError", "the program is malformed: a tensor has too many dimensions");
  type.strides.resize(type.shape.size());
  uint64_t elements = 1;
  for (size_t i = type.shape.size(); i-- > 0;) {
    type.strides[i] = static_cast<int64_t>(elements);
    if (type.shape[i] < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(type.shape[i]), &elements) ||
        elements > (uint64_t{1} << 56))
      Raise("ArtifactError", "the program is malformed: a tensor has an impossible shape");
  }
  type.nbytes = elements * (type.dtype.bits / 8);
  return type;
}

// Tags of arguments.
enum : uint8_t {
  kRead,
  kOver,
  kWritten,
  kWeight,
  kScratch,
  kFirst,
  kCount,
  kExchanged,
  kRows,
  kInterleaved,
  kValid
};

Arg ReadRows(Cursor& in, bool interleaved) {
  Arg arg{ArgKind::kRows};
  RowsTable& table = arg.table;
  table.at = in.Get<uint64_t>();
  table.rows = in.Get<uint64_t>();
  arg.type = ReadType(in);
  bool rows = arg.type.shape.size() == 2 && arg.type.nbytes > 0;
  if (interleaved) {
    table.block_nbytes = in.Get<uint64_t>();
    table.lanes = in.Get<uint32_t>();
    table.parts = in.List(20, [&] { return Strided{in.Get<uint64_t>(), in.Get<uint32_t>(), in.Get<uint64_t>()}; });
    rows &= table.lanes > 0 && table.block_nbytes <= kMostTensorNbytes;
  } else if (rows) {
    table.block_nbytes = arg.row_nbytes();
    table.parts = {{0, 1, arg.row_nbytes()}};
  }
  if (!rows) Raise("ArtifactError", "the program is malformed: there are no rows to fetch");
  return arg;
}

Arg ReadArg(Cursor& in) {
  const uint8_t tag = in.Get<uint8_t>();
  if (tag == kFirst || tag == kCount) return {tag == kFirst ? ArgKind::kFirst : ArgKind::kCount};
  if (tag == kValid) return {ArgKind::kValid};
  if (tag > kValid) RaiseError("ArtifactError", "the program holds a kernel argument of unknown kind ", int{tag});
  if (tag == kRows || tag == kInterleaved) return ReadRows(in, tag == kInterleaved);
  Arg arg{tag == kWeight    ? ArgKind::kWeight
          : tag == kScratch ? ArgKind::kScratch
                            : ArgKind::kValue};
  if (arg.kind != ArgKind::kValue) {
    arg.type = ReadType(in);
    return arg;
  }
  arg.value = in.Get<uint32_t>();
  arg.offset = in.Get<uint64_t>();
  arg.over = tag == kOver;
  arg.type = ReadType(in);
  if (tag == kWritten || tag == kExchanged) {
    const auto touched = in.Get<uint64_t>();
    if (touched == 0 || touched > arg.type.nbytes)
      Raise("ArtifactError", "the program is malformed: an argument is written, but no byte of it, or more than it has");
    arg.exchanged = tag == kExchanged;
    arg.written = arg.exchanged ? 0 : touched;
    return arg;
  }
  arg.bounds = in.List(16, [&] {
    const int64_t low = in.Get<int64_t>();
    return Bound{low, in.Get<int64_t>()};
  });
  return arg;
}

// Weights, and scratch, of a layer follow each other.
void PlaceArg(Arg& arg, uint64_t& end) {
  arg.offset = end;
  const auto room = [&] {
    return arg.kind == ArgKind::kRows ? RoomForRows(arg.type.nbytes, arg.table.block_nbytes) : RoundUp(arg.type.nbytes, kAlign);
  };
  if (arg.type.nbytes > kMostTensorNbytes || __builtin_add_overflow(end, room(), &end))
    Raise("ArtifactError", "the program is malformed: a layer has too many bytes");
}

Layer ReadLayer(Cursor& in) {
  Layer layer;
  layer.name = in.Text();
  layer.op = in.Text();
  layer.kernel = in.Text();
  layer.implementation = in.Text();
  layer.description = in.Text();
  layer.flops = in.Get<uint64_t>();
  const uint64_t weights_at = in.Get<uint64_t>();
  layer.args = in.List(1, [&] { return ReadArg(in); });
  uint64_t weights_nbytes = 0, scratch_nbytes = 0;
  int64_t blocks = 1;
  const Arg* before = nullptr;
  for (Arg& arg : layer.args) {
    if (arg.kind == ArgKind::kWeight) PlaceArg(arg, weights_nbytes);
    if (arg.kind == ArgKind::kScratch || arg.kind == ArgKind::kRows) PlaceArg(arg, scratch_nbytes);
    if (arg.kind == ArgKind::kFirst && before != nullptr && before->kind == ArgKind::kWeight && !before->type.shape.empty())
      blocks = before->type.shape[0];
    before = &arg;
  }
  if (blocks < 1 || blocks > INT32_MAX) RaiseError("ArtifactError", "the program is malformed: layer ", layer.name, " has ", blocks, " blocks of weights");
  layer.scratch_nbytes = scratch_nbytes;
  if (weights_nbytes > 0) layer.weights = {weights_at, static_cast<uint32_t>(blocks), weights_nbytes / blocks};
  auto preparations = in.List(16, [&] {
    Preparation preparation;
    preparation.kernel = in.Text();
    preparation.stored = ReadType(in);
    preparation.channels = in.Get<uint32_t>();
    return preparation;
  });
  if (preparations.size() > 1 || (!preparations.empty() && !layer.weights))
    RaiseError("ArtifactError", "the program is malformed: the weights of layer ", layer.name, " are prepared twice, or there are none");
  if (!preparations.empty()) layer.weights->preparation = std::move(preparations.front());
  return layer;
}

State ReadState(Cursor& in) {
  State state;
  state.input = in.Text();
  state.output = in.Text();
  state.value = in.Get<uint32_t>();
  state.offset = in.Get<uint64_t>();
  state.result = in.Get<uint32_t>();
  state.type = ReadType(in);
  return state;
}

Step ReadStep(Cursor& in) {
  Step step;
  step.layer = in.Get<uint32_t>();
  step.first = in.Get<uint32_t>();
  step.count = in.Get<uint32_t>();
  step.weights_at = in.Get<int64_t>();
  step.scratch_at = in.Get<int64_t>();
  return step;
}

FirstStep ReadFirstStep(Cursor& in) {
  const uint32_t number = in.Get<uint32_t>();
  return {number, ReadStep(in)};
}

uint64_t ReadPages(Cursor& in) { return kPage * in.Get<uint32_t>(); }

Operation ReadOperation(Cursor& in, const Program& program) {
  enum : uint8_t {
    kAtItsTurn,
    kAnytime,
    kCopy,
    kPrepare
  };
  Operation operation;
  const uint8_t kind = in.Get<uint8_t>();
  if (kind > kPrepare) Raise("ArtifactError", "the program holds an operation of a kind that this runtime does not know");
  operation.load = in.Get<uint32_t>();
  if (kind == kPrepare) {
    operation.kind = Operation::Kind::kPrepare;
    operation.layer = in.Get<uint32_t>();
    operation.first = in.Get<uint32_t>();
    operation.count = in.Get<uint32_t>();
    operation.from = in.Get<uint64_t>();
    operation.to = in.Get<uint64_t>();
    FindSizes(operation, program);
    return operation;
  }
  operation.kind = kind == kCopy ? Operation::Kind::kCopy : Operation::Kind::kRead;
  if (kind == kAnytime) operation.after = Operation::kAnytime;
  operation.from = ReadPages(in);
  operation.from_nbytes = operation.nbytes = ReadPages(in);
  operation.to = ReadPages(in);
  return operation;
}

Run ReadRun(Cursor& in) {
  const uint32_t operation = in.Get<uint32_t>();
  const uint32_t count = in.Get<uint32_t>();
  return {operation, count, in.Get<int32_t>()};
}

// Encoded, at least.
constexpr size_t kStepNbytes = 28, kFirstStepNbytes = 32, kOperationNbytes = 17, kRunNbytes = 12;

RungHead ReadRung(Cursor& in, size_t values, std::string_view& plans) {
  RungHead rung;
  rung.budget = in.Get<uint64_t>();
  rung.arena = in.Get<uint64_t>();
  rung.working = in.Get<uint64_t>();
  rung.predicted_s = in.Get<double>();
  if (!(rung.predicted_s >= 0 && std::isfinite(rung.predicted_s)))
    RaiseError("ArtifactError", "the program is malformed: the plan for ", rung.budget, " bytes is predicted to take no time that there is");
  rung.pinned = in.Get<uint64_t>();
  rung.streamed = in.Get<uint64_t>();
  rung.steps = in.Get<uint32_t>();
  rung.operations = in.Get<uint32_t>();
  rung.runs = in.Get<uint32_t>();
  rung.first_steps = in.Get<uint32_t>();
  const uint64_t nbytes = in.Get<uint64_t>();
  rung.crc = in.Get<uint32_t>();
  if (nbytes > plans.size()) RaiseError("ArtifactError", "the program is malformed: the plan for ", rung.budget, " bytes ends behind it");
  rung.plan = plans.substr(0, nbytes);
  plans.remove_prefix(nbytes);
  // Room is allocated by the head's counts before the plan is looked at.
  if (nbytes < 8 * values + kStepNbytes * rung.steps + kFirstStepNbytes * rung.first_steps + kOperationNbytes * rung.operations +
                   kRunNbytes * rung.runs)
    RaiseError("ArtifactError", "the program is malformed: the plan for ", rung.budget, " bytes has no room for what it is said to hold");
  return rung;
}

Program ReadBody(Cursor& in, std::string_view plans) {
  Program program;
  program.model = in.Text();
  program.target = in.Text();
  program.features = in.List(4, [&] { return in.Text(); });
  program.threads = in.Get<uint32_t>();
  for (auto& [key, value] : in.List(8, [&] {
         std::string key = in.Text();
         return std::pair(std::move(key), in.Text());
       }))
    program.metadata.emplace(std::move(key), std::move(value));
  WeightsDigest& weights = program.weights;
  weights.file_nbytes = in.Get<uint64_t>();
  weights.header_nbytes = in.Get<uint64_t>();
  weights.header_crc = in.Get<uint32_t>();
  weights.data_nbytes = in.Get<uint64_t>();
  weights.checksums = in.List(20, [&] {
    Checksum sum;
    sum.offset = in.Get<uint64_t>();
    sum.nbytes = in.Get<uint64_t>();
    sum.crc = in.Get<uint32_t>();
    return sum;
  });
  const auto spaces = in.List(4, [&] { return in.Text(); });
  if (spaces.size() != 1 || (spaces[0] != "host" && spaces[0] != "cuda"))
    Raise("ArtifactError", "the program uses memory spaces that this runtime does not know");
  program.on_cuda = spaces[0] == "cuda";
  program.values = in.List(16, [&] {
    Value value{in.Text(), in.Get<uint64_t>()};
    if (in.Get<uint32_t>() != 0) Raise("ArtifactError", "the program is malformed: a value lies in no memory space");
    return value;
  });
  for (auto* ports : {&program.inputs, &program.outputs})
    *ports = in.List(16, [&] {
      std::string name = in.Text();
      const uint32_t value = in.Get<uint32_t>();
      return Port{std::move(name), value, ReadType(in)};
    });
  program.states = in.List(32, [&] { return ReadState(in); });
  program.layers = in.List(40, [&] { return ReadLayer(in); });
  program.rungs = in.List(76, [&] { return ReadRung(in, program.values.size(), plans); });
  if (const size_t left = in.left() + plans.size(); left != 0)
    RaiseError("ArtifactError", "the program is malformed: ", left, " bytes too many");
  return program;
}

}  // namespace

Program ReadProgram(std::string_view bytes) {
  if (bytes.size() < kBodyStart || bytes.substr(0, kMagic.size()) != kMagic)
    Raise("ArtifactError", "not a program: wrong magic");
  Cursor in(bytes.substr(kMagic.size()));
  const uint32_t version = in.Get<uint32_t>();
  if (version < kOldestFormat || version > kFormat)
    RaiseError("ArtifactError", "the program has format ", version, ", this runtime reads formats ", kOldestFormat, " to ", kFormat);
  const uint32_t crc = in.Get<uint32_t>();
  const uint64_t size = in.Get<uint64_t>();
  if (size != bytes.size())
    RaiseError("ArtifactError", "the program is cut or extended: ", bytes.size(), " bytes instead of ", size);
  const uint64_t plans_at = in.Get<uint64_t>();
  if (plans_at < kBodyStart || plans_at > size) Raise("ArtifactError", "the program is malformed: its plans are not in it");
  if (Crc32(0, bytes.data() + kCrcStart, plans_at - kCrcStart) != crc)
    Raise("ArtifactError", "the program is damaged: its checksum differs");
  Cursor body(bytes.substr(kBodyStart, plans_at - kBodyStart));
  Program program = ReadBody(body, bytes.substr(plans_at));
  ValidateProgram(program);
  program.plans = std::make_unique<Plans>(program);
  return program;
}

void ReadPlan(const RungHead& head, const Program& program, Rung& rung) {
  if (Crc32(0, head.plan.data(), head.plan.size()) != head.crc)
    RaiseError("ArtifactError", "the program is damaged: the checksum of its plan for ", head.budget, " bytes differs");
  Cursor in(head.plan, head.budget);
  rung.budget = head.budget;
  rung.arena = head.arena;
  rung.working = head.working;
  const auto require = [&](bool holds) {
    if (!holds)
      RaiseError("ArtifactError", "the program is malformed: the plan for ", head.budget, " bytes holds something else than it is said to");
  };
  const auto list = [&](uint32_t count, size_t nbytes, auto& items, auto read) {
    require(in.Get<uint32_t>() == count);
    in.Repeat(count, nbytes, items, read);
  };
  in.Repeat(program.values.size(), 8, rung.value_at, [&] { return in.Get<int64_t>(); });
  list(head.steps, kStepNbytes, rung.steps, [&] { return ReadStep(in); });
  list(head.first_steps, kFirstStepNbytes, rung.first_steps, [&] { return ReadFirstStep(in); });
  list(head.operations, kOperationNbytes, rung.operations, [&] { return ReadOperation(in, program); });
  const size_t tapes = head.first_steps > 0 ? Rung::kTapes : Rung::kSecond;
  require(in.Get<uint32_t>() == tapes);
  rung.runs.reserve(head.runs);
  rung.need.reserve(Rung::kComputing * size_t{head.steps});
  for (size_t t = 0; t < tapes; ++t) {
    Rung::TapeRange& tape = rung.tapes[t];
    const bool computes = t != Rung::kFill && t != Rung::kSettle;
    tape.runs_begin = static_cast<uint32_t>(rung.runs.size());
    tape.need_begin = static_cast<uint32_t>(rung.need.size());
    const uint32_t runs = in.Get<uint32_t>();
    require(runs <= head.runs - rung.runs.size());
    for (uint32_t i = 0; i < runs; ++i) rung.runs.push_back(ReadRun(in));
    require(in.Get<uint32_t>() == (computes ? head.steps : 0));
    for (uint32_t i = 0; computes && i < head.steps; ++i) rung.need.push_back(in.Get<uint32_t>());
    tape.runs_end = static_cast<uint32_t>(rung.runs.size());
    tape.need_end = static_cast<uint32_t>(rung.need.size());
  }
  require(rung.runs.size() == head.runs);
  rung.loads = rung.operations.empty() ? 0 : rung.operations.back().load + 1;
  if (in.left() != 0)
    RaiseError("ArtifactError", "the program is malformed: the plan for ", head.budget, " bytes has ", in.left(), " bytes too many");
  ValidatePlan(rung, program);
}

std::string DtypeName(DLDataType dtype) {
  if (dtype.code == kDLBool) return "bool";
  const char* base = dtype.code == kDLInt      ? "int"
                     : dtype.code == kDLUInt   ? "uint"
                     : dtype.code == kDLFloat  ? "float"
                     : dtype.code == kDLBfloat ? "bfloat"
                                               : "unknown";
  return base + std::to_string(dtype.bits);
}

std::string ToString(const TensorType& type) {
  std::string text = DtypeName(type.dtype) + "[";
  for (size_t i = 0; i < type.shape.size(); ++i) text += (i ? "×" : "") + std::to_string(type.shape[i]);
  return text + "]";
}

}  // namespace flexcomp

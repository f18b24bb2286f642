#include "program/shapes.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"

namespace flexcomp {
namespace {

constexpr std::string_view kShapesMagic = "FLEXSHPS";
constexpr uint32_t kMostShapes = 16;

template <typename T>
T Take(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) Raise("ArtifactError", "the shapes of the network are malformed: they end too soon");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

bool SameDtype(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits; }

bool SamePorts(const std::vector<Port>& ours, const std::vector<Port>& theirs) {
  return std::ranges::equal(ours, theirs, [](const Port& a, const Port& b) {
    return a.name == b.name && SameDtype(a.type.dtype, b.type.dtype) && a.type.shape.size() == b.type.shape.size();
  });
}

bool SameInputs(const Program& ours, const Program& theirs) {
  return std::ranges::equal(ours.inputs, theirs.inputs, [](const Port& a, const Port& b) { return a.type.shape == b.type.shape; });
}

bool SameStates(const Program& ours, const Program& theirs) {
  const auto nbytes = [](const Program& program) { return program.states.empty() ? 0 : program.values[program.states.front().value].nbytes; };
  const auto same = [](const State& a, const State& b) {
    return a.input == b.input && a.output == b.output && a.offset == b.offset && a.type == b.type;
  };
  return nbytes(ours) == nbytes(theirs) && std::ranges::equal(ours.states, theirs.states, same);
}

bool SameWeights(const WeightsDigest& ours, const WeightsDigest& theirs) {
  return ours.file_nbytes == theirs.file_nbytes && ours.header_nbytes == theirs.header_nbytes && ours.header_crc == theirs.header_crc &&
         ours.data_nbytes == theirs.data_nbytes &&
         std::ranges::equal(ours.checksums, theirs.checksums,
                            [](const Checksum& a, const Checksum& b) { return a.offset == b.offset && a.nbytes == b.nbytes && a.crc == b.crc; });
}

std::string Extents(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "×" : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

Shapes::Shapes(std::vector<std::shared_ptr<const Program>> programs) : programs_(std::move(programs)) {
  if (programs_.empty()) Raise("ArtifactError", "the network has no shape");
  const Program& first = *programs_.front();
  for (size_t i = 1; i < programs_.size(); ++i) {
    const Program& other = *programs_[i];
    const bool agree = first.target == other.target && first.features == other.features && first.threads == other.threads &&
                       first.on_cuda == other.on_cuda && SamePorts(first.inputs, other.inputs) &&
                       SamePorts(first.outputs, other.outputs) && SameStates(first, other) && SameWeights(first.weights, other.weights);
    if (!agree) RaiseError("ArtifactError", "shape ", i, " of the network differs from others in more than extents");
    for (size_t j = 0; j < i; ++j)
      if (SameInputs(*programs_[j], other)) RaiseError("ArtifactError", "shapes ", j, " and ", i, " of the network have the same inputs");
  }
  padding_ = Padding::Of(programs_);
}

size_t Shapes::Find(std::span<const std::span<const int64_t>> inputs) const {
  if (programs_.size() == 1) return 0;
  const auto takes = [&](const std::shared_ptr<const Program>& program) {
    return std::ranges::equal(program->inputs, inputs, [](const Port& port, std::span<const int64_t> shape) { return std::ranges::equal(port.type.shape, shape); });
  };
  if (const auto found = std::ranges::find_if(programs_, takes); found != programs_.end()) return static_cast<size_t>(found - programs_.begin());
  const std::vector<Port>& ports = programs_.front()->inputs;
  if (inputs.size() != ports.size()) RaiseError("InputError", ports.size(), " inputs are needed, ", inputs.size(), " given");
  for (size_t i = 0; i < ports.size(); ++i) {
    const size_t rank = ports[i].type.shape.size();
    if (inputs[i].size() != rank)
      RaiseError("InputError", "input \"", ports[i].name, "\" has ", rank, " axes; given was ", Extents(inputs[i]));
    for (size_t axis = 0; axis < rank; ++axis) {
      std::set<int64_t> known;
      for (const auto& program : programs_) known.insert(program->inputs[i].type.shape[axis]);
      if (known.contains(inputs[i][axis])) continue;
      std::string list;
      for (const int64_t extent : known) list += (list.empty() ? "" : ", ") + std::to_string(extent);
      RaiseError("InputError", "input \"", ports[i].name, "\" has ", inputs[i][axis], " elements along axis ", axis, ", and the library was built for ", list);
    }
  }
  std::string given, known;
  for (size_t i = 0; i < ports.size(); ++i) given += (i ? ", " : "") + ports[i].name + Extents(inputs[i]);
  for (const auto& program : programs_) {
    known += known.empty() ? "" : "; ";
    for (size_t i = 0; i < ports.size(); ++i) known += (i ? ", " : "") + ports[i].name + Extents(program->inputs[i].type.shape);
  }
  RaiseError("InputError", "the library was not built for ", given, " together; there are ", known);
}

std::vector<LaneRung> LaneLadder(const Shapes& shapes) {
  const auto kept = [](const RungHead& rung) { return rung.arena - rung.working; };
  const std::vector<RungHead>& own = shapes[0].rungs;
  std::vector<LaneRung> ladder;
  for (size_t r = 0; r < own.size(); ++r) {
    LaneRung lane{own[r].working, kept(own[r]), {r}};
    const auto fits = [&](const RungHead& rung) { return rung.working <= lane.working && kept(rung) <= lane.kept; };
    const auto include = [&](const RungHead& rung) {
      lane.working = std::max(lane.working, rung.working);
      lane.kept = std::max(lane.kept, kept(rung));
    };
    for (size_t i = 1; i < shapes.size(); ++i) {
      if (r + 1 == own.size()) include(shapes[i].rungs.back());
      else if (std::ranges::none_of(shapes[i].rungs, fits)) include(shapes[i].rungs.front());
    }
    for (size_t i = 1; i < shapes.size(); ++i) {
      const std::vector<RungHead>& rungs = shapes[i].rungs;
      size_t best = rungs.size();
      for (size_t j = 0; j < rungs.size(); ++j)
        if (fits(rungs[j]) && (best == rungs.size() || rungs[j].predicted_s <= rungs[best].predicted_s)) best = j;
      lane.rungs.push_back(best);
    }
    ladder.push_back(std::move(lane));
  }
  return ladder;
}

std::vector<std::string_view> SplitShapes(std::string_view bytes) {
  if (!bytes.starts_with(kShapesMagic)) return {bytes};
  std::string_view left = bytes.substr(kShapesMagic.size());
  const auto count = Take<uint32_t>(left);
  if (count < 2 || count > kMostShapes) RaiseError("ArtifactError", "the shapes of the network are malformed: there are ", count);
  std::vector<uint64_t> sizes;
  for (uint32_t i = 0; i < count; ++i) sizes.push_back(Take<uint64_t>(left));
  std::vector<std::string_view> parts;
  for (const uint64_t size : sizes) {
    if (size > left.size()) Raise("ArtifactError", "the shapes of the network are malformed: they end too soon");
    parts.push_back(left.substr(0, size));
    left.remove_prefix(size);
  }
  if (!left.empty()) RaiseError("ArtifactError", "the shapes of the network are malformed: ", left.size(), " bytes too many");
  return parts;
}

}  // namespace flexcomp

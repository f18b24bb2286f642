#include "decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace flexcomp {
namespace {

constexpr char kUnsupported[] = "Unsupported";
constexpr char kWayOut[] = ": build a decoder with inputs named as transformers names them, and with state= for its caches";

// flexcomp/generation/names.py
constexpr std::string_view kIds[] = {"input_ids", "ids", "tokens"}, kMasks[] = {"attention_mask", "mask"},
                           kPlaces[] = {"position_ids", "positions"}, kStarts[] = {"cache_position", "past_length", "start", "at"};
constexpr std::string_view kLogits = "logits";

bool Among(std::span<const std::string_view> names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

uint64_t CountOf(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

uint64_t LastOf(std::span<const int64_t> shape) { return shape.empty() ? 1 : static_cast<uint64_t>(shape.back()); }

bool IsWhole(DLDataType dtype) { return (dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.bits >= 32; }

// Element `index` of a tensor; other types than whole numbers hold 0 and 1 only.
void Put(const DLTensor& tensor, uint64_t index, uint64_t value) {
  const size_t nbytes = tensor.dtype.bits / 8;
  std::byte* const place = static_cast<std::byte*>(tensor.data) + index * nbytes;
  if (tensor.dtype.code == kDLFloat && nbytes == 8) {
    const auto number = static_cast<double>(value);
    std::memcpy(place, &number, nbytes);
  } else if (tensor.dtype.code == kDLFloat && nbytes == 4) {
    const auto number = static_cast<float>(value);
    std::memcpy(place, &number, nbytes);
  } else {
    const bool narrow = tensor.dtype.code == kDLFloat || tensor.dtype.code == kDLBfloat;
    const uint64_t one = tensor.dtype.code == kDLFloat ? 0x3c00 : 0x3f80, bits = narrow && value != 0 ? one : value;
    std::memcpy(place, &bits, nbytes);  // numbers begin with their low bytes
  }
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float NumberAt(const DLTensor& tensor, uint64_t index) {
  const std::byte* const data = static_cast<const std::byte*>(tensor.data);
  if (tensor.dtype.bits == 32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  if (tensor.dtype.code == kDLBfloat) return FloatOf(uint32_t{bits} << 16);
  const uint32_t size = bits & 0x7fff;
  const float magnitude = size >= 0x7c00 ? FloatOf(0x7f800000 | (size & 0x3ff) << 13)
                          : size < 0x400 ? static_cast<float>(size) * 0x1p-24f
                                         : FloatOf((size << 13) + (112u << 23));
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

Decoder::Decoder(const Shapes& shapes) {
  const Program& first = shapes[0];
  std::string listed;
  for (const Port& port : first.inputs) (listed += listed.empty() ? "" : ", ") += port.name;
  for (const Port& port : first.inputs) {
    if (Among(kIds, port.name)) roles_.push_back(Role::kIds);
    else if (Among(kMasks, port.name)) roles_.push_back(Role::kMask);
    else if (Among(kPlaces, port.name)) roles_.push_back(Role::kPlaces);
    else if (Among(kStarts, port.name)) roles_.push_back(Role::kStart);
    else RaiseError(kUnsupported, "it is not known what the decoder's input \"", port.name, "\" is", kWayOut);
  }
  if (std::ranges::count(roles_, Role::kIds) != 1) RaiseError(kUnsupported, "one input must be the tokens, and the inputs are ", listed, kWayOut);
  for (const State& state : first.states) {
    const std::vector<int64_t>& extents = state.type.shape;
    if (extents.size() != 4) RaiseError(kUnsupported, "the state \"", state.input, "\" is no cache of keys or values", kWayOut);
    const auto places = static_cast<uint64_t>(extents[2]);
    if (capacity_ != 0 && places != capacity_) RaiseError(kUnsupported, "the caches have ", capacity_, " and ", places, " places", kWayOut);
    capacity_ = places;
  }
  if (capacity_ == 0) RaiseError(kUnsupported, "the library has no caches", kWayOut);
  const auto named = std::ranges::find(first.outputs, kLogits, &Port::name);
  if (named == first.outputs.end() && first.outputs.size() != 1) RaiseError(kUnsupported, "none of the outputs is named \"", kLogits, "\"", kWayOut);
  logits_ = named == first.outputs.end() ? 0 : static_cast<size_t>(named - first.outputs.begin());
  vocabulary_ = LastOf(first.outputs[logits_].type.shape);
  for (size_t shape = 0; shape < shapes.size(); ++shape) {
    const Program& ports = shapes[shape];
    uint64_t taken = 0;
    for (size_t i = 0; i < roles_.size(); ++i)
      if (roles_[i] == Role::kIds) taken = LastOf(ports.inputs[i].type.shape);
    for (size_t i = 0; i < roles_.size(); ++i) {
      const TensorType& input = ports.inputs[i].type;
      const uint64_t count = CountOf(input.shape);
      const bool fits = roles_[i] == Role::kMask  ? count == capacity_
                        : roles_[i] == Role::kIds ? count == taken && IsWhole(input.dtype)
                                                  : (count == taken || count == 1) && IsWhole(input.dtype);
      if (!fits) RaiseError(kUnsupported, "the decoder's input \"", ports.inputs[i].name, "\" is ", ToString(input), ", for ", taken, " tokens", kWayOut);
    }
    const TensorType& logits = ports.outputs[logits_].type;
    const bool is_float = (logits.dtype.code == kDLFloat && logits.dtype.bits <= 32) || logits.dtype.code == kDLBfloat;
    const uint64_t given = logits.shape.size() == 3 ? static_cast<uint64_t>(logits.shape[1]) : 1;
    if (!is_float || taken == 0 || given == 0 || LastOf(logits.shape) != vocabulary_ || CountOf(logits.shape) != given * vocabulary_)
      RaiseError(kUnsupported, "the logits are ", ToString(logits), ", not those of one text", kWayOut);
    gives_all_ &= given == taken;
    sizes_.emplace_back(taken, shape);
  }
  std::ranges::sort(sizes_);
}

std::pair<uint64_t, size_t> Decoder::ChooseSize(uint64_t begin, uint64_t left) const {
  const std::pair<uint64_t, size_t>*whole = nullptr, *above = nullptr;
  for (const auto& one : sizes_) {
    if (one.first > capacity_ - begin) break;
    if (one.first <= left) whole = &one;
    else if (gives_all_ && above == nullptr) above = &one;
  }
  if (above != nullptr && (whole == nullptr || whole->first < left)) return *above;
  if (whole != nullptr) return *whole;
  RaiseError("InputError", "no shape of the library, for ", sizes_.front().first, " tokens at once or more, fits ", left, " tokens: build one for 1, too");
}

void Decoder::Fill(std::span<DLTensor> inputs, uint64_t size, uint64_t begin, std::span<const int64_t> piece) const {
  for (size_t i = 0; i < roles_.size(); ++i) {
    const DLTensor& tensor = inputs[i];
    const uint64_t count = CountOf({tensor.shape, static_cast<size_t>(tensor.ndim)});
    if (roles_[i] == Role::kIds && count != size) Raise("InputError", "another call of this session has changed its shape meanwhile");
    for (uint64_t k = 0; k < count; ++k) {
      uint64_t value = begin + k;
      if (roles_[i] == Role::kMask) value = k < begin + size;
      if (roles_[i] == Role::kIds) value = k < piece.size() ? static_cast<uint64_t>(piece[k]) : 0;
      Put(tensor, k, value);
    }
  }
}

void Decoder::Take(const Infer& infer, uint64_t position, std::span<const int64_t> tokens, std::span<float> logits) const {
  if (position > capacity_ || tokens.size() > capacity_ - position)
    RaiseError("InputError", tokens.size(), " tokens after ", position, " others are more than the caches have places for: ", capacity_);
  for (const int64_t token : tokens)
    if (token < 0 || static_cast<uint64_t>(token) >= vocabulary_) RaiseError("InputError", "tokens are numbers from 0 to ", vocabulary_ - 1, ", not ", token);
  while (!tokens.empty()) {
    const auto [size, shape] = ChooseSize(position, tokens.size());
    const std::span<const int64_t> piece = tokens.first(std::min<uint64_t>(size, tokens.size()));
    tokens = tokens.subspan(piece.size());
    const auto fill = [&, size = size](std::span<DLTensor> inputs) { Fill(inputs, size, position, piece); };
    const auto drain = [&](std::span<DLTensor> outputs) {
      const DLTensor& given = outputs[logits_];
      const uint64_t row = gives_all_        ? piece.size() - 1
                           : given.ndim == 3 ? static_cast<uint64_t>(given.shape[1]) - 1
                                             : 0;
      for (uint64_t k = 0; k < vocabulary_; ++k) logits[k] = NumberAt(given, row * vocabulary_ + k);
    };
    const bool wanted = tokens.empty() && !logits.empty();
    infer(shape, fill, wanted ? OnTensors(drain) : OnTensors());
    position += piece.size();
  }
  if (std::ranges::any_of(logits, [](float one) { return std::isnan(one) || one == INFINITY; }))
    Raise("ExecutionError", "the logits are no numbers");
}

}  // namespace flexcomp

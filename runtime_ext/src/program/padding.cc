#include "program/padding.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr size_t kLongestRecord = 1 << 16;
constexpr int64_t kMostFactor = int64_t{1} << 20;  // of extents: no product overflows
constexpr int kDeepestRecord = 8;  // brackets within brackets, which the reader of JSON follows by recursion

template <typename... Parts>
[[noreturn]] void Malformed(const Parts&... parts) {
  RaiseError("ArtifactError", "the library's record of padding is malformed: ", parts...);
}

json::Object Parsed(std::string_view text) {
  int depth = 0, deepest = 0;
  for (const char byte : text) {
    depth += byte == '{' || byte == '['   ? 1
             : byte == '}' || byte == ']' ? -1
                                          : 0;
    deepest = std::max(deepest, depth);
  }
  if (text.size() > kLongestRecord || deepest > kDeepestRecord) Malformed("it is too long");
  ffi::String error;
  const auto record = json::Parse(ffi::String(text.data(), text.size()), &error).try_cast<json::Object>();
  if (!error.empty() || !record) Malformed("it is no JSON object");
  return *record;
}

json::Object Member(const json::Object& record, const char* key) {
  const auto value = record.Get(ffi::String(key));
  const auto object = value.has_value() ? value->try_cast<json::Object>() : std::nullopt;
  if (!object) Malformed("it has no object \"", key, "\"");
  return *object;
}

// The bits of a number with so many bits of a mantissa, the nearest; infinite beyond the largest.
uint16_t Narrowed(double value, int mantissa, int bias) {
  const int width = 15 - mantissa, least = 1 - bias;
  const double size = std::abs(value);
  const int exponent = size == 0 ? least : std::max(std::ilogb(size), least);
  const double scaled = std::nearbyint(std::ldexp(size, mantissa - exponent));
  const int bits = (exponent + bias - 1) * (1 << mantissa) + static_cast<int>(scaled);
  return static_cast<uint16_t>(std::min(bits, ((1 << width) - 1) << mantissa) | (std::signbit(value) ? 0x8000 : 0));
}

double Largest(DLDataType dtype) {
  if (dtype.code == kDLBfloat) return 0x1.fep127;
  return dtype.bits == 16   ? 65504
         : dtype.bits == 32 ? std::numeric_limits<float>::max()
                            : std::numeric_limits<double>::max();
}

template <typename T>
std::vector<std::byte> BytesOf(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::optional<std::vector<std::byte>> WholeNumber(DLDataType dtype, int64_t value) {
  const bool is_signed = dtype.code == kDLInt;
  const int bits = dtype.code == kDLBool ? 1 : dtype.bits - is_signed;
  const bool fits = bits >= 63 ? is_signed || value >= 0 : value < int64_t{1} << bits && value >= (is_signed ? -(int64_t{1} << bits) : 0);
  if (!fits) return std::nullopt;
  std::vector<std::byte> bytes = BytesOf(value);  // the machines of this runtime begin numbers with their low bytes
  bytes.resize(dtype.bits / 8);
  return bytes;
}

std::vector<std::byte> ElementOf(const Port& port, const json::Value& given) {
  const DLDataType dtype = port.type.dtype;
  const auto whole = given.type_index() == ffi::TypeIndex::kTVMFFIInt ? given.try_cast<int64_t>() : std::nullopt;
  const auto number = whole                                                ? std::optional(static_cast<double>(*whole))
                      : given.type_index() == ffi::TypeIndex::kTVMFFIFloat ? given.try_cast<double>()
                                                                           : std::nullopt;
  if (dtype.code == kDLFloat || dtype.code == kDLBfloat) {
    if (number && std::abs(*number) <= Largest(dtype)) {
      if (dtype.bits == 64) return BytesOf(*number);
      if (dtype.bits == 32) return BytesOf(static_cast<float>(*number));
      return BytesOf(dtype.code == kDLBfloat ? Narrowed(*number, 7, 127) : Narrowed(*number, 10, 15));
    }
  } else if (whole || (dtype.code == kDLBool && number && (*number == 0 || *number == 1))) {
    if (auto bytes = WholeNumber(dtype, whole.value_or(static_cast<int64_t>(*number)))) return *std::move(bytes);
  }
  Malformed("\"", port.name, "\" is ", DtypeName(dtype), ", which has no such value");
}

int64_t FactorOf(const json::Object& record, const char* key, int64_t least) {
  const auto value = record.Get(ffi::String(key));
  const auto number = value.has_value() && value->type_index() == ffi::TypeIndex::kTVMFFIInt ? value->try_cast<int64_t>() : std::nullopt;
  if (!number || *number < least || *number > kMostFactor) Malformed("an extent has no such \"", key, "\"");
  return *number;
}

std::string ListOf(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

int64_t Padding::Extent::Of(const Known& known) const noexcept {
  const int64_t sum = known[static_cast<size_t>(name)] + add;
  return times * (sum / divisor - (sum % divisor < 0 ? 1 : 0)) + plus;
}

bool Padding::Axes::any() const noexcept {
  return std::ranges::any_of(extents, [](const Extent& one) { return one.name != kNone; });
}

std::string Padding::TextOf(const Extent& extent) const {
  const auto added = [](int64_t number) {
    return number == 0 ? std::string() : (number < 0 ? " - " : " + ") + std::to_string(std::abs(number));
  };
  std::string text = names_[static_cast<size_t>(extent.name)] + added(extent.add);
  if (extent.divisor != 1) text = (extent.add != 0 ? "(" + text + ")" : text) + " / " + std::to_string(extent.divisor);
  if (extent.times != 1) text = std::to_string(extent.times) + " * (" + text + ")";
  return text + added(extent.plus);
}

TensorType Padding::Sized(const TensorType& whole, const Axes& axes, const Known& given) {
  TensorType type = whole;
  int64_t elements = 1;
  for (size_t axis = whole.shape.size(); axis-- > 0;) {
    if (axes.extents[axis].name != kNone) type.shape[axis] = axes.extents[axis].Of(given);
    type.strides[axis] = elements;
    elements *= type.shape[axis];
  }
  type.nbytes = static_cast<uint64_t>(elements) * (whole.dtype.bits / 8);
  return type;
}

std::shared_ptr<const Padding> Padding::Of(Programs programs) {
  const auto found = programs.front()->metadata.find("pad");
  if (found == programs.front()->metadata.end()) return nullptr;
  return std::shared_ptr<const Padding>(new Padding(programs, found->second));
}

Padding::Padding(Programs programs, std::string_view text) {
  const json::Object record = Parsed(text), values = Member(record, "values");
  const Program& first = *programs.front();
  const auto index_of = [&](const std::string& name) {
    const auto found = std::ranges::find(names_, name);
    return found == names_.end() ? kNone : static_cast<int>(found - names_.begin());
  };
  const auto read = [&](const char* key, const std::vector<Port>& ports, std::vector<Axes>& all) {
    size_t used = 0;
    const json::Object given = Member(record, key);
    for (const Port& port : ports) {
      Axes& axes = all.emplace_back();
      axes.extents.resize(port.type.shape.size());
      const auto entry = given.Get(ffi::String(port.name));
      if (!entry.has_value()) continue;
      ++used;
      const auto names = entry->try_cast<json::Array>();
      if (!names || names->size() != axes.extents.size()) Malformed("\"", port.name, "\" has other axes");
      for (size_t axis = 0; axis < axes.extents.size(); ++axis) {
        const json::Value one = (*names)[static_cast<int64_t>(axis)];
        if (one == nullptr) continue;
        Extent& extent = axes.extents[axis];
        const auto derived = &all == &outputs_ ? one.try_cast<json::Object>() : std::nullopt;
        const json::Value of = derived ? derived->Get(ffi::String("of")).value_or(json::Value(nullptr)) : one;
        const auto name = of.try_cast<ffi::String>();
        if (!name) Malformed("a name of an extent is no text");
        if (index_of(*name) == kNone && &all == &outputs_) Malformed("outputs have names that no input has");
        if (index_of(*name) == kNone) names_.emplace_back(*name);
        extent.name = index_of(*name);
        if (derived) {
          extent.times = FactorOf(*derived, "times", 1);
          extent.add = FactorOf(*derived, "add", -kMostFactor);
          extent.divisor = FactorOf(*derived, "divisor", 1);
          extent.plus = FactorOf(*derived, "plus", -kMostFactor);
        }
      }
      if (!axes.any()) Malformed("\"", port.name, "\" has no axis with a name");
    }
    if (used != given.size()) Malformed("its ", key, " are not those of the network");
    return used;
  };
  const size_t padded = read("inputs", first.inputs, inputs_);
  read("outputs", first.outputs, outputs_);
  if (padded == 0 || values.size() != padded) Malformed("values are not those of its inputs");
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].any()) continue;
    const auto value = values.Get(ffi::String(first.inputs[i].name));
    if (!value.has_value()) Malformed("values are not those of its inputs");
    inputs_[i].value = ElementOf(first.inputs[i], *value);
  }
  for (const auto& program : programs) {
    Known& known = known_.emplace_back(names_.size(), kNone);
    const auto note = [&](const std::vector<Port>& ports, const std::vector<Port>& of_first, const std::vector<Axes>& all) {
      for (size_t i = 0; i < ports.size(); ++i)
        for (size_t axis = 0; axis < all[i].extents.size(); ++axis) {
          const int64_t extent = ports[i].type.shape[axis];
          const Extent& of = all[i].extents[axis];
          if (of.name == kNone) {
            if (extent != of_first[i].type.shape[axis]) Malformed("shapes differ along axes without a name");
            continue;
          }
          int64_t& noted = known[static_cast<size_t>(of.name)];
          if (noted == kNone) noted = extent;
          if (of.Of(known) != extent) Malformed("\"", ports[i].name, "\" has ", extent, " elements along \"", TextOf(of), "\"");
        }
    };
    note(program->inputs, first.inputs, inputs_);
    note(program->outputs, first.outputs, outputs_);
    if (program->on_cuda) Malformed("a GPU computes, and it is for CPUs");
  }
  for (auto* all : {&inputs_, &outputs_})
    for (Axes& axes : *all)
      if (axes.any())
        for (const Extent& one : axes.extents) {
          const auto text = [&] { return (one.plain() ? names_[static_cast<size_t>(one.name)] : formulas_.emplace_back(TextOf(one))).c_str(); };
          axes.texts.push_back(one.name == kNone ? nullptr : text());
        }
  least_.assign(names_.size(), 1);
  if (record.Get(ffi::String("least")).has_value()) {
    const json::Object least = Member(record, "least");
    size_t used = 0;
    for (size_t i = 0; i < names_.size(); ++i)
      if (least.Get(ffi::String(names_[i])).has_value()) least_[i] = FactorOf(least, names_[i].c_str(), 1), ++used;
    if (used != least.size()) Malformed("its least extents are not those of its inputs");
  }
  if (const auto rows = record.Get(ffi::String("rows")); rows.has_value() && *rows != nullptr) {
    const auto name = rows->try_cast<ffi::String>();
    rows_ = name ? index_of(*name) : kNone;
    if (rows_ == kNone) Malformed("its rows are those of no input");
  }
}

Fit Padding::FitOf(Programs programs, std::span<const Extents> inputs) const {
  const std::vector<Port>& ports = programs.front()->inputs;
  if (inputs.size() != ports.size()) RaiseError("InputError", ports.size(), " inputs are needed, ", inputs.size(), " given");
  struct Where {
    size_t input, axis;
  };
  Known given(names_.size(), kNone);
  std::vector<Where> noted(names_.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    if (inputs[i].size() != inputs_[i].extents.size())
      RaiseError("InputError", "input \"", ports[i].name, "\" has ", inputs_[i].extents.size(), " axes; given was ", ListOf(inputs[i]));
    for (size_t axis = 0; axis < inputs[i].size(); ++axis) {
      if (inputs_[i].extents[axis].name == kNone) continue;
      const auto name = static_cast<size_t>(inputs_[i].extents[axis].name);
      const auto says = [&](const Where& where) {
        return "\"" + ports[where.input].name + "\" has " + std::to_string(inputs[where.input][where.axis]) + " elements along axis " + std::to_string(where.axis);
      };
      const int64_t extent = inputs[i][axis];
      if (extent < least_[name])
        RaiseError("InputError", "input ", says({i, axis}), ", and at least ", least_[name], least_[name] == 1 ? " is needed" : " are needed");
      if (given[name] == kNone) {
        given[name] = extent;
        noted[name] = {i, axis};
      } else if (given[name] != extent) {
        RaiseError("InputError", "input ", says({i, axis}), ", but ", says(noted[name]), ": both are ", names_[name]);
      }
    }
  }
  Fit fit;
  fit.shape = known_.size();
  while (fit.shape-- > 0 && !std::ranges::equal(known_[fit.shape], given, std::greater_equal())) {
  }
  if (fit.shape >= known_.size()) Refuse(programs, given);
  if (rows_ != kNone) fit.valid_rows = given[static_cast<size_t>(rows_)];
  if (known_[fit.shape] == given) return fit;
  const Program& program = *programs[fit.shape];
  for (size_t i = 0; i < inputs_.size(); ++i) fit.inputs.push_back(Sized(program.inputs[i].type, inputs_[i], given));
  for (size_t i = 0; i < outputs_.size(); ++i) {
    for (const Extent& one : outputs_[i].extents)
      if (one.name != kNone && one.Of(given) < 1)
        RaiseError("InputError", "inputs of ", Named(given), " are too short: the output \"", program.outputs[i].name, "\" has ", TextOf(one), " elements along an axis");
    fit.outputs.push_back(Sized(program.outputs[i].type, outputs_[i], given));
  }
  return fit;
}

uint32_t Padding::BitsOf(const Axes& axes) noexcept {
  uint32_t bits = 0;
  for (size_t axis = 0; axis < axes.extents.size(); ++axis) bits |= uint32_t{axes.extents[axis].name != kNone} << axis;
  return bits;
}

void Padding::Refuse(Programs programs, const Known& given) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    for (size_t axis = 0; axis < inputs_[i].extents.size(); ++axis) {
      if (inputs_[i].extents[axis].name == kNone) continue;
      const auto name = static_cast<size_t>(inputs_[i].extents[axis].name);
      int64_t most = 0;
      for (const Known& known : known_) most = std::max(most, known[name]);
      if (given[name] > most)
        RaiseError("InputError", "input \"", programs.front()->inputs[i].name, "\" has ", given[name], " elements along axis ", axis,
                   ", and the library was built for ", most, " at most");
    }
  std::string there;
  for (const Known& known : known_) there += (there.empty() ? "" : "; ") + Named(known);
  RaiseError("InputError", "no shape of the library holds ", Named(given), ": there are ", there);
}

std::string Padding::Named(const Known& extents) const {
  std::string text;
  for (size_t i = 0; i < names_.size(); ++i) text += (i ? ", " : "") + names_[i] + "=" + std::to_string(extents[i]);
  return text;
}

}  // namespace flexcomp

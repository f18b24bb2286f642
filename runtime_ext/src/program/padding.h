// Inputs that are shorter than the shapes of a library: they are padded at the end, and outputs are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace flexcomp {

// The tensors of an inference, and the shape that takes them.
struct Fit {
  size_t shape = 0;
  std::vector<TensorType> inputs{}, outputs{};  // of a padded inference, in the order of the ports; empty: as the shape has them
  std::optional<int64_t> valid_rows{};      // that kernels are told; none: all

  bool padded() const noexcept { return !inputs.empty(); }
  const TensorType& input(const Program& program, size_t index) const noexcept { return padded() ? inputs[index] : program.inputs[index].type; }
  const TensorType& output(const Program& program, size_t index) const noexcept { return padded() ? outputs[index] : program.outputs[index].type; }
};

class Padding {
 public:
  using Programs = std::span<const std::shared_ptr<const Program>>;
  using Extents = std::span<const int64_t>;

  // The record of a library (flexcomp/runtime/padding.py). None: the library pads nothing. Throws ArtifactError for a record that does
  // not fit the programs.
  static std::shared_ptr<const Padding> Of(Programs programs);

  // The next shape that holds inputs of these extents. Throws InputError, which names an axis, if none does.
  Fit FitOf(Programs programs, std::span<const Extents> inputs) const;
  // Axes of a port that are padded or cut: bit i is axis i.
  uint32_t input_axes(size_t input) const noexcept { return BitsOf(inputs_[input]); }
  uint32_t output_axes(size_t output) const noexcept { return BitsOf(outputs_[output]); }
  // The names of a port's axes, or formulas of names, which live as long as this; nullptr for axes that are never padded. Empty: the
  // port has none that are.
  std::span<const char* const> input_names(size_t input) const noexcept { return inputs_[input].texts; }
  std::span<const char* const> output_names(size_t output) const noexcept { return outputs_[output].texts; }
  // An element of an input's padding.
  std::span<const std::byte> value(size_t input) const noexcept { return inputs_[input].value; }

 private:
  using Known = std::vector<int64_t>;  // extents by names_
  static constexpr int kNone = -1;
  // times · ⌊(n + add) / divisor⌋ + plus of the extent n of a name. Of an input it is the extent itself.
  struct Extent {
    int name = kNone;  // an index into names_; kNone: the axis is never padded
    int64_t times = 1, add = 0, divisor = 1, plus = 0;

    bool plain() const noexcept { return times == 1 && add == 0 && divisor == 1 && plus == 0; }
    int64_t Of(const Known& known) const noexcept;
  };
  struct Axes {
    std::vector<Extent> extents;     // of each axis
    std::vector<const char*> texts;  // names, into names_ and formulas_
    std::vector<std::byte> value;    // of inputs

    bool any() const noexcept;
  };

  Padding(Programs programs, std::string_view record);
  Padding(const Padding&) = delete;
  Padding& operator=(const Padding&) = delete;
  static uint32_t BitsOf(const Axes& axes) noexcept;
  static TensorType Sized(const TensorType& whole, const Axes& axes, const Known& given);
  std::string TextOf(const Extent& extent) const;
  [[noreturn]] void Refuse(Programs programs, const Known& given) const;
  std::string Named(const Known& extents) const;

  std::vector<std::string> names_;
  std::deque<std::string> formulas_;    // of extents that follow from others
  std::vector<Axes> inputs_, outputs_;  // of all ports
  std::vector<Known> known_;            // of the shapes
  Known least_;                         // of inferences
  int rows_ = -1;                       // the name whose extent kernels are told
};

}  // namespace flexcomp

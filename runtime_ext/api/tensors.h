// Tensors between callers and sessions.
#pragma once

#include <dlpack/dlpack.h>
#include <flexcomp.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/shapes.h"

namespace flexcomp::api {

// An input, output or state of a program.
struct Described {
  const std::string& name;
  const TensorType& type;
};

size_t CountOf(const Program& program, flexcomp_kind kind);  // throws InputError for an unknown kind, as the next
Described At(const Program& program, flexcomp_kind kind, uint32_t index);  // and for an unknown index

// Throws Unsupported for a type that the header does not have.
flexcomp_dtype DtypeOf(DLDataType dtype);

// The caller's array, as a session takes it, for the first `count` tensors of that kind. The program and the fit must outlive the
// result. Only outputs may lie nowhere.
class Bound {
 public:
  // Throws InputError, Unsupported.
  Bound(const Program& program, flexcomp_kind kind, const flexcomp_tensor* tensors, uint32_t count, uint32_t first = 0, const Fit& fit = {});

  std::span<const DLTensor* const> tensors() const noexcept { return pointers_; }

 private:
  std::vector<DLTensor> made_;
  std::vector<const DLTensor*> pointers_;
};

// The shape that takes the inputs as they state their extents. Throws InputError if there is none, or an extent that differs is not
// stated.
Fit FitOf(const Shapes& shapes, const flexcomp_tensor* inputs, uint32_t count);

// All inputs of an inference, and the first outputs. Throws as Bound, and InputError for another number of inputs.
struct Ports {
  Ports(const Shapes& shapes, const flexcomp_tensor* inputs, uint32_t input_count, const flexcomp_tensor* outputs, uint32_t output_count);
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  const Fit fit;
  const Bound inputs, outputs;
};

}  // namespace flexcomp::api

// The kernel calls of one rung with every argument in place, so that a step costs one call. Another rung's take their
// place without asking for memory, which may be short when budgets change.
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/bounds_check.h"
#include "kernels/processor.h"
#include "memory/places.h"
#include "program/program.h"

namespace flexcomp {

// Rows of a table in the file, by numbers that lie in the arena.
struct RowsFetch {
  const std::byte* ids;
  bool wide;         // int64; otherwise int32
  uint64_t count;    // of the numbers
  const RowsTable* table;
  uint64_t row_nbytes;
  std::byte* target;   // of the rows
  std::byte* staging;  // pages, enough for wherever a block lies
};

struct Call {
  Kernel kernel;
  const TVMFFIAny* args;
  int32_t count;
  uint32_t layer;
  uint32_t checks;            // of the data that the step reads, before the step runs
  bool exchanges;             // into a state: the same call again undoes the exchange
  const BoundsCheck* check;
  const RowsFetch* fetch;  // before the step runs, after the checks; nullptr: nothing
};

// The kernels of a program: of each layer, and of each whose weights are prepared.
struct Kernels {
  std::vector<Kernel> compute, prepare;
};

// A compact tensor of `type` at `data`. Both must outlive the tensor.
DLTensor MakeTensor(const TensorType& type, std::byte* data);
// Arguments of a kernel.
TVMFFIAny IntArg(int64_t value);
TVMFFIAny TensorArg(DLTensor* tensor);

class CallTable {
 public:
  static constexpr int64_t kAllRows = INT64_MAX;

  CallTable() = default;
  // Finds room for any rung of the program. `kernels` are of all layers.
  CallTable(const Program& program, Kernels kernels);

  // From now on the calls are those of these steps of `rung`, in this arena. All arguments and the arena's memory must outlive the
  // table.
  void Prepare(const Program& program, const Rung& rung, std::span<const Step> steps, Places arena) noexcept;

  // Kernels that are told how many rows are valid compute these; all rows, once the calls are others.
  void SetValid(int64_t rows) noexcept;

  std::span<const Call> calls() const noexcept { return calls_; }
  const Kernels& kernels() const noexcept { return kernels_; }

 private:
  Kernels kernels_;
  std::vector<DLTensor> tensors_;
  std::vector<TVMFFIAny> args_;  // point into tensors_
  std::vector<TVMFFIAny*> valid_;  // of args_, those that are the valid rows
  std::vector<BoundsCheck> checks_;
  std::vector<RowsFetch> fetches_;
  std::vector<Call> calls_;  // point into args_, checks_ and fetches_
};

}  // namespace flexcomp

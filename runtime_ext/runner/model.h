// An open session, through the interface that every exported model has.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "inputs.h"
#include "outputs.h"
#include "ports.h"

namespace flexcomp::runner {

class Model {
 public:
  // Throws std::runtime_error, tvm::ffi::Error, UsageError.
  explicit Model(const Arguments& arguments);

  std::vector<Port> InputPorts() const { return ParsePorts(info_["inputs"].cast<tvm::ffi::json::Array>()); }
  std::vector<Port> OutputPorts() const { return ParsePorts(info_["outputs"].cast<tvm::ffi::json::Array>()); }

  // One rung of the ladder.
  struct Rung {
    int64_t budget, arena;  // bytes
  };
  std::vector<Rung> Ladder() const;
  uint64_t asked() const { return asked_; }  // bytes of the budget that was given

  bool HasState() const { return info_.count("states") > 0 && !info_["states"].cast<tvm::ffi::json::Array>().empty(); }

  // One inference, from a cleared state if that was asked for. `look` sees the outputs in the arena.
  using Look = std::function<void(tvm::ffi::PackedArgs)>;
  void Run(const Inputs& inputs, const Look& look = {}) const;
  // Bytes per second of the storage alone, by reads of `request` bytes, about as many as an inference needs.
  double ReadRate(int64_t request) const;
  // The GPU's costs besides its kernels. Only with --device-rates.
  tvm::ffi::json::Object DeviceRates() const;
  void SetBudget(int64_t budget) const { (*set_budget_)(budget); }
  // Loads the kept bytes; milliseconds. Only with --start warm.
  double Warm() const { return (*warm_)().cast<double>() * 1e3; }
  tvm::ffi::json::Object Stats() const;
  // Of the last inference, as one line. Only with --trace.
  std::string Trace() const { return (*trace_)().cast<tvm::ffi::String>(); }

 private:
  // Of several the shape that these files of inputs have. Throws UsageError, and InputError where there is none.
  size_t ShapeFor(const std::map<std::string, std::string>& files) const;

  tvm::ffi::json::Object info_;
  uint64_t asked_ = 0;
  std::optional<tvm::ffi::Module> session_;
  std::optional<tvm::ffi::Function> run_, reset_states_, stats_, set_budget_, warm_, trace_, read_rate_, device_rates_;
};

}  // namespace flexcomp::runner

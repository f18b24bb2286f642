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
#include "decoder/decoder.h"
#include "inputs.h"
#include "outputs.h"
#include "padded.h"
#include "ports.h"

namespace flexcomp::runner {

class Model {
 public:
  // Throws std::runtime_error, tvm::ffi::Error, UsageError.
  explicit Model(const Arguments& arguments);

  const std::vector<Port>& InputPorts() const { return inputs_; }
  const std::vector<Port>& OutputPorts() const { return outputs_; }

  // One rung of the ladder.
  struct Rung {
    int64_t budget, arena;  // bytes
  };
  std::vector<Rung> Ladder() const;
  uint64_t asked() const { return asked_; }  // bytes of the budget that was given

  bool HasState() const { return info_.count("states") > 0 && !info_["states"].cast<tvm::ffi::json::Array>().empty(); }

  // One inference, from a cleared state if that was asked for. `look` sees the outputs, in the arena unless they are cut.
  using Look = std::function<void(tvm::ffi::PackedArgs)>;
  void Run(const Inputs& inputs, const Look& look = {}) const;
  // The model as a decoder, of whose inferences RunIn is one. Throws tvm::ffi::Error.
  Decoder AsDecoder() const;
  // One inference in a shape of the library, without padding.
  void RunIn(size_t shape, const Decoder::OnTensors& fill, const Decoder::OnTensors& drain) const;
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
  // Of several the shape that takes these inputs. Throws InputError where there is none.
  size_t ShapeFor(const ShapesByName& given) const;
  // Ports in this shape, or shorter ones; from now on inferences are in this shape.
  void Take(size_t shape, const ShapesByName& given);

  tvm::ffi::json::Object info_;
  uint64_t asked_ = 0;
  std::vector<Port> inputs_, outputs_;
  bool padded_ = false;  // the session pads inputs and cuts outputs, which have memory of their own
  std::optional<tvm::ffi::Module> session_;
  std::optional<tvm::ffi::Function> run_, run_copying_, take_shape_, reset_states_, stats_, set_budget_, warm_, trace_, read_rate_, device_rates_;
};

}  // namespace flexcomp::runner

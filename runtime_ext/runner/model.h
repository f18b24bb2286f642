// An open session.
#pragma once

#include <flexcomp.h>

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"
#include "calls.h"
#include "inputs.h"
#include "outputs.h"
#include "ports.h"

namespace flexcomp::runner {

// What sessions and members of pools have in common.
flexcomp_options OptionsOf(const Arguments& arguments);

class Model {
 public:
  // Throws std::runtime_error, CallError, UsageError.
  explicit Model(const Arguments& arguments);

  const std::vector<Port>& InputPorts() const { return inputs_; }
  const std::vector<Port>& OutputPorts() const { return outputs_; }
  // The budgets of the shape in use that are enough for all shapes.
  std::vector<flexcomp_budget_info> Ladder() const;
  uint32_t rung() const;               // of the plan in use
  flexcomp_budget_info Plan() const;   // in use
  uint64_t asked() const { return asked_; }  // bytes of the budget that was given
  flexcomp_session* session() const { return session_.get(); }
  flexcomp_session_info info() const { return Got<flexcomp_session_info>(flexcomp_describe_session, session()); }
  flexcomp_stats Stats() const { return Got<flexcomp_stats>(flexcomp_get_stats, session()); }

  // One inference, from a cleared state if that was asked for. `look` sees the outputs, in the arena unless they are cut.
  using Look = OnPlaces;
  void Run(const Inputs& inputs, const Look& look = {}) const;
  void SetBudget(uint64_t budget) const { Require(flexcomp_set_budget(session(), budget)); }

 private:
  void Open(const Arguments& arguments);
  // Of several the shape that takes these inputs. Throws CallError where there is none.
  uint32_t ShapeFor(const ShapesByName& given) const;
  // Ports in this shape, or shorter ones; from now on inferences are in this shape.
  void Take(uint32_t shape, const ShapesByName& given);

  SessionHandle session_;
  uint64_t asked_ = 0;
  uint32_t shape_count_ = 1;
  std::vector<Port> inputs_, outputs_;
  bool padded_ = false;  // the session pads inputs and cuts outputs, which have memory of their own
  const bool reset_state_;
};

}  // namespace flexcomp::runner

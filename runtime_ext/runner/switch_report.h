// --switch-budgets: the budget of an open model switched at random, and the report.
#pragma once

#include "arguments.h"
#include "inputs.h"
#include "json.h"
#include "model.h"
#include "outputs.h"

namespace flexcomp::runner {

// With one inference after each switch. The last one's outputs are written.
void SwitchBetweenRuns(const Model& model, const Inputs& inputs, const Outputs& outputs, const Arguments& arguments,
                       Json& report);

// While callers run inferences and check each output; at most `pause_ms` pass between two switches.
void SwitchDuringRuns(const Model& model, const Inputs& inputs, const Arguments& arguments, double pause_ms,
                      Json& report);

}  // namespace flexcomp::runner

// The budgets of the C interface.
#pragma once

#include <cstdint>

#include "program/shapes.h"

namespace flexcomp::api {

// The bytes that a caller means: FLEXCOMP_BUDGET_… are named, and enough for every shape.
uint64_t BudgetOf(uint64_t given, const Shapes& shapes);

}  // namespace flexcomp::api

// The budgets of the C interface.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace flexcomp::api {

// The bytes that a caller means: FLEXCOMP_BUDGET_… are named. Throws BudgetError, which says the smallest one.
uint64_t BudgetOf(uint64_t given, const Program& program);

}  // namespace flexcomp::api

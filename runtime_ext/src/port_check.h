// Whether a tensor of the caller's is what a port takes or gives.
#pragma once

#include <tvm/ffi/c_api.h>

#include "program/program.h"

namespace flexcomp {

// Throws InputError, with the port's name, for another type, shape, device or order in memory.
void CheckTensor(const Port& port, const DLTensor& tensor);

}  // namespace flexcomp

// Notes on a run for the user, besides its figures.
#pragma once

#include <tvm/ffi/extra/json.h>

namespace flexcomp::runner {

// One sentence each, of a session's state.
tvm::ffi::json::Array Notes(const tvm::ffi::json::Object& stats);

}  // namespace flexcomp::runner

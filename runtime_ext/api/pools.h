// Open pools by their handles.
#pragma once

#include <flexcomp.h>

#include <memory>

#include "pool/pool.h"

namespace flexcomp::api {

// Lives at least as long as the result. Throws an error of kind Closed.
std::shared_ptr<Pool> FindPool(flexcomp_pool* handle);

}  // namespace flexcomp::api

// How fast a GPU is given work and weights, besides the kernels' own time.
#pragma once

#include "cuda/device.h"
#include "kernels/device_rates.h"

namespace flexcomp::cuda {

// With memory of its own, while nothing else uses the streams. Each is a median of several rounds. Throws ExecutionError.
DeviceRates MeasureRates(Device& device);

}  // namespace flexcomp::cuda

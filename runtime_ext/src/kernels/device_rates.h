// The costs of a device besides its kernels' own time.
#pragma once

namespace flexcomp {

struct DeviceRates {
  double copy_bytes_per_s = 0;  // from memory of this process to the device's; 0: nothing is copied
  double launch_s = 0;          // of a kernel, as one follows the other
  double wait_s = 0;            // from the launch of an empty kernel until this process knows its end
  double event_s = 0;           // until work that waits for an event of another stream begins
};

}  // namespace flexcomp

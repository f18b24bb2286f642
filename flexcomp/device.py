"""What the planner assumes about a device: how fast it computes, and how fast its storage reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProfile:
    """Rates of a device. The defaults are a middling edge device's; measured ones give better plans."""

    flops_per_s: float  # of one thread, for kernels with operands in registers
    memory_bytes_per_s: float  # read and written by memory-bound kernels
    storage_bytes_per_s: float = 1.0e9  # sequential reads past the page cache
    load_overhead_s: float = 60e-6  # of one read, whatever its size
    step_overhead_s: float = 1e-6  # of one kernel call

    def seconds(self, flops: float, nbytes: int, threads: int) -> float:
        """Predicted time of a kernel that does `flops` operations on `nbytes` bytes of operands."""
        return self.step_overhead_s + max(flops / (self.flops_per_s * threads), nbytes / self.memory_bytes_per_s)


def default_profile(vector_width: int) -> DeviceProfile:
    """A guess from the vector unit alone: one fused multiply-add of a register each cycle at 3 GHz."""
    return DeviceProfile(flops_per_s=2.0 * vector_width * 3.0e9, memory_bytes_per_s=15e9)

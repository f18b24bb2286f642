"""ARM without a device: `python -m benchmarks.lab.arm` emulates one, `python -m benchmarks.lab.arm.mca` counts cycles."""

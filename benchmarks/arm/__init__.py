"""ARM without a device: `python -m benchmarks.arm` emulates one, `python -m benchmarks.arm.mca` counts cycles."""

"""Parts of `python -m benchmarks.soak`."""

"""What all families of kernels share: what a layer computes (`spec.py`), tiles of accumulators, panels, emitted loops."""

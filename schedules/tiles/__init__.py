"""Shared by all families of kernels: specifications of layers (`spec.py`), tiles of accumulators, panels, emitted loops."""

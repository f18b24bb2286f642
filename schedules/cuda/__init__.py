"""Kernels for NVIDIA's GPUs: families as for CPUs, with the same parameters, whose loops are bound to blocks and threads."""

from .architecture import ARCHITECTURES, Architecture

__all__ = ["ARCHITECTURES", "Architecture"]

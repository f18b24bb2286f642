"""Kernels of operators besides convolutions and dense layers, one file an operator."""

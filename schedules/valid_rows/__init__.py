"""Kernels that compute the rows of their results that an inference has, of those that they were made for.

`accesses.py` reads the indices of a kernel, `bounds.py` finds loops over rows, `kernel.py` bounds these, and `folds.py`
leaves rows out of reductions.
"""

from .folds import folded
from .kernel import ByRows, by_rows, with_zeros

__all__ = ["ByRows", "by_rows", "folded", "with_zeros"]

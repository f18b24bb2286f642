"""What a random case of a kernel family is: a name, a kernel, and its check."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from tvm import tirx

from .kernels import call

SHAPES = int(os.environ.get("FLEXCOMP_SHAPES", "10"))  # of each family: few, because each is a kernel to compile


@dataclass(frozen=True)
class Case:
    """One kernel for one random shape."""

    name: str
    build: Callable[[], tirx.PrimFunc] = field(compare=False)
    check: Callable[[Callable], None] = field(compare=False)  # given the compiled function; raises AssertionError


def pick(*values: int) -> st.SearchStrategy[int]:
    """One of several sizes; named twice it comes twice as often."""
    return st.sampled_from([(i, value) for i, value in enumerate(values)]).map(lambda drawn: drawn[1])


def compare(name: str, build, inputs: list[np.ndarray], expected: np.ndarray, atol: float, dtype: str = "float32") -> Case:
    """A case of a kernel (inputs…, output)."""

    def check(function) -> None:
        found = call(function, *inputs, out=expected.shape, dtype=dtype)
        np.testing.assert_allclose(found, expected, atol=atol, rtol=0)

    return Case(name, build, check)

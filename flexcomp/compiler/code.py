"""Names of kernels in a library, and remembered names of kernels that need not be made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import tvm
from tvm import tirx

from flexcomp import schedules
from flexcomp.cache import KernelCache
from flexcomp.device import CompileTarget
from flexcomp.errors import UnsupportedModelError
from flexcomp.network import BandKernel
from flexcomp.passes import attributes
from flexcomp.program import Layer, signature

from .machine_code import extent, family_of, name_of, require_agreement, signature_of

Kernel = tirx.PrimFunc | BandKernel

# Statements of a kernel. LLVM takes a second for 3,000, the most that kernel families unroll to, and minutes for more than these.
MOST_STATEMENTS = 30_000


class _TooLarge(Exception):
    """A kernel whose compilation would not end."""


class Code:
    """Names of kernels in libraries for a target; each is examined once.

    Those of bands are made only if the `cache`, which may be None, does not know their names: these
    are found there by the inputs of the kernels.
    """

    def __init__(self, target: CompileTarget, cache: KernelCache | None) -> None:
        self.target, self._cache = target, cache
        self._known: dict[tuple[str, Kernel], tuple[str, str]] = {}  # signatures and names

    def of(self, kernels: Mapping[str, Kernel], layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], dict[str, Kernel]]:
        """The layers, calling kernels by descriptive names, and these kernels by their symbols. As `by_symbol`.

        Raises UnsupportedModelError for a layer whose kernel LLVM would compile for minutes.
        """
        known = {}
        for name, kernel in kernels.items():
            try:
                known[name] = self._look_at(name, kernel)
            except _TooLarge as error:
                titles = [layer.name for layer in layers if layer.kernel == name]
                raise UnsupportedModelError(f"layer {(titles or [name])[0]}: {error}") from None
        require_agreement({name: takes for name, (takes, _) in known.items()}, layers)
        code = {signature.symbol(called, takes): kernels[name] for name, (takes, called) in known.items()}
        return tuple(_calling(layer, {name: called for name, (_, called) in known.items()}) for layer in layers), code

    def _look_at(self, name: str, kernel: Kernel) -> tuple[str, str]:
        key = family_of(name), kernel
        if key not in self._known:
            self._known[key] = self._of_band(name, kernel) if isinstance(kernel, BandKernel) else self._of_code(name, kernel)
        return self._known[key]

    def _of_code(self, name: str, kernel: tirx.PrimFunc) -> tuple[str, str]:
        statements = extent(kernel)
        if statements > MOST_STATEMENTS:
            raise _TooLarge(
                f"its kernel has {statements:,} statements, and more than {MOST_STATEMENTS:,} take minutes to compile: "
                "the operator is written out for every element or window; build it for smaller inputs, or split it"
            )
        takes = signature_of(kernel)
        return takes, name_of(name, kernel, takes, self.target)

    def _of_band(self, name: str, kernel: BandKernel) -> tuple[str, str]:
        parts = (_makers(), str(self.target), family_of(name), kernel.identity)
        key = f"band_{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
        known = self._cache.find(key) if self._cache is not None else None
        if known is not None:
            takes, called = json.loads(known)
            return takes, called
        found = self._of_code(name, kernel.code)
        if self._cache is not None:
            self._cache.keep(key, json.dumps(found).encode())
        return found


def _calling(layer: Layer, names: Mapping[str, str]) -> Layer:
    """The layer with other names for its kernels."""
    weights = layer.weights
    if weights and weights.preparation:
        weights = replace(weights, preparation=replace(weights.preparation, kernel=names[weights.preparation.kernel]))
    return replace(layer, kernel=names[layer.kernel], weights=weights)


@cache
def _makers() -> str:
    """A hash of the code that makes PrimFuncs of bands, and names of these."""
    sources = sorted(Path(schedules.__file__).parent.rglob("*.py"))
    sources += [Path(attributes.__file__), Path(__file__), Path(__file__).with_name("machine_code.py")]
    sources += [Path(signature.__file__)]
    digest = hashlib.sha256(tvm.__version__.encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()

"""Dense layers of very few rows: every weight is used once or a few times, so a layer takes as long as reading its weights.

A block of threads computes a block of the panel. Neighbouring threads read neighbouring vectors of channels, of several
products at a time, so that all reads of a warp are one run of memory; each adds up every so many-th product, and the sums
are added up across warps at last.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.layer_function import Operands, layer_function
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec
from .architecture import WARP
from .emit import LANES, barrier, fill, launched, only_if, registers, shared, shuffled
from .panels import ThreadPanel
from .results import Results

# Channels of a block: few, so that small layers have blocks for all multiprocessors.
COLUMNS = 16
MOST_ROWS = 4  # from which on the tiles of `main_loop.py` read less
_THREADS = 256
_AHEAD = 4  # vectors of weights that a thread asks for before using the first


def eligible(spec: ConvSpec) -> bool:
    return spec.pointwise and spec.groups == 1 and spec.batch * spec.height * spec.width <= MOST_ROWS


def kernel(spec: ConvSpec) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of COLUMNS channels."""
    panel = panel_of(spec, COLUMNS)
    rows = spec.batch * spec.height * spec.width
    across = COLUMNS // LANES
    slices, warps = _THREADS // across, _THREADS // WARP

    def emit(given: Operands) -> None:
        with launched((given.count,), _THREADS) as ((offset,), thread):
            weights = ThreadPanel(given.panel, offset)
            sums, room = registers(rows * LANES), shared(warps * rows * COLUMNS)
            fill(sums, rows * LANES)
            lane, own = T.bind(thread % across * LANES), T.bind(thread // across)

            def add(step, count: int) -> None:
                """`count` products of the thread, from its product number `step` on."""
                loaded = weights.ahead(count)
                products = [(step + i) * slices + own for i in range(count)]
                for i, product in enumerate(products):
                    weights.load(loaded, i, product, lane)
                for i, product in enumerate(products):
                    wide = [T.bind(weight) for weight in weights.weights(loaded, i)]
                    for row in range(rows):
                        x = T.bind(given.x[row * spec.in_channels + product])
                        for j, weight in enumerate(wide):
                            at = row * LANES + j
                            T.buffer_store(sums, sums[at] + x * weight, [at])

            whole = spec.taps // slices  # products that every thread has
            if whole // _AHEAD:
                with T.serial(whole // _AHEAD) as step:
                    add(step * _AHEAD, _AHEAD)
            if whole % _AHEAD:
                add(whole - whole % _AHEAD, whole % _AHEAD)
            if spec.taps % slices:
                with only_if(whole * slices + own < spec.taps):
                    add(whole, 1)

            # Threads of a warp with the same channels; then warps.
            for at in range(rows * LANES):
                distance = WARP // 2
                while distance >= across:
                    T.buffer_store(sums, sums[at] + shuffled(sums[at], distance), [at])
                    distance //= 2
            with only_if(thread % WARP < across):
                for row in range(rows):
                    for j in range(LANES):
                        place = (thread // WARP * rows + row) * COLUMNS + lane + j
                        T.buffer_store(room, sums[row * LANES + j], [place])
            barrier()
            results = Results(spec, given, weights, given.first + offset)
            with only_if(thread < rows * across):

                def total(j):
                    value = room[own * COLUMNS + lane + j]
                    for warp in range(1, warps):
                        value = value + room[(warp * rows + own) * COLUMNS + lane + j]
                    return value

                results.store(own, lane, total)

    assert math.gcd(_THREADS, across) == across
    return layer_function(spec, panel, emit, in_place=spec.tensors > 0)

"""Tables whose rows are read from the file by the numbers that an inference asks for, instead of being loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tvm import tirx

from flexcomp.passes.attributes import FETCH
from flexcomp.plan import Storage
from flexcomp.program import Interleaved, Layer, RowsArg, Strided, TensorType, ValueArg
from flexcomp.schedules.operators import embedding
from flexcomp.schedules.operators.embedding import EmbeddingSpec


def fetching(layer: Layer, kernels: Mapping[str, tirx.PrimFunc], width: int) -> tuple[Layer, tirx.PrimFunc] | None:
    """The layer that fetches the rows which this one looks up in its weights, and its kernel; None if that is not worth it.

    Both read the same bytes of the file. `width` is that of a vector, in floats.
    """
    encoded = (kernels[layer.kernel].attrs or {}).get(FETCH)
    if encoded is None or layer.weights is None:
        return None
    spec = EmbeddingSpec.decode(str(encoded))
    if not spec.worth_fetching:
        return None
    numbers = math.prod(spec.ids)
    lanes = spec.interleaved and Interleaved(
        spec.block_rows, layer.weights.block_nbytes, tuple(Strided(*part) for part in spec.parts)
    )
    rows = RowsArg(0, TensorType((numbers, spec.columns), spec.dtype), layer.weights.offset, spec.rows, lanes)
    ids, y = (arg for arg in layer.args if isinstance(arg, ValueArg))
    return (
        replace(
            layer,
            kernel=f"{layer.kernel}_rows",
            implementation="rows",
            args=(ids, rows, y),
            weights=None,
            scratch_nbytes=rows.room_nbytes,
        ),
        embedding.rows_kernel(spec, width),
    )


def fetch_seconds(layer: Layer, storage: Storage) -> float:
    """Time in which a layer's rows are read, one after the other."""
    rows = layer.fetched
    if rows is None:
        return 0.0
    return rows.type.shape[0] * (storage.single_s + rows.read_nbytes / storage.bandwidth)

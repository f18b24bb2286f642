"""The kernels of operators for a machine, a CPU or a GPU; those of layers are in families (`registry.py`).

Passes and lowering ask here, and go the same way for both. Without a kernel for GPUs the one for CPUs is taken, with
vectors of one number, as threads (`cuda/fallback.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from . import registry
from .cuda import attention as gpu_attention
from .cuda import copies as gpu_copies
from .cuda import embedding as gpu_embedding
from .cuda import fallback
from .cuda import pool as gpu_pool
from .cuda import rowwise as gpu_rowwise
from .cuda.architecture import Architecture
from .cuda.unit import Gpu
from .generic import schedule as generic
from .operators import attention, concat, pool, scatter_rows
from .operators.attention_spec import AttentionSpec
from .operators.concat import ConcatSpec
from .operators.embedding import EmbeddingSpec
from .operators.pool import PoolSpec
from .operators.rowwise import RowSpec
from .operators.scatter_rows import ScatterSpec
from .registry import Machine
from .row_bands import Bands, RowKernel, row_kernel
from .tiles.tile import VectorUnit

_GPU_OPERATORS: dict[type, Callable[..., tirx.PrimFunc]] = {
    ConcatSpec: gpu_copies.concat,
    EmbeddingSpec: gpu_embedding.kernel,
    PoolSpec: gpu_pool.kernel,
    RowSpec: gpu_rowwise.kernel,
}


# How kernels of operators compute bands of rows.
_BANDS = {PoolSpec: Bands(PoolSpec, pool.kernel), ConcatSpec: Bands(ConcatSpec, concat.kernel)}


def vectors(machine: Machine) -> VectorUnit:
    """The vector unit that kernels for CPUs are made for; on a GPU they become threads of one number each."""
    return machine.serial if isinstance(machine, Gpu) else machine


def operator(spec, family: Callable[[object, int], tirx.PrimFunc], unit: Machine) -> tirx.PrimFunc:
    """The kernel of an operator without weights; `family` makes the one for CPUs."""
    if isinstance(unit, Gpu) and type(spec) in _GPU_OPERATORS:
        return _GPU_OPERATORS[type(spec)](spec)
    return family(spec, vectors(unit).width)


def copy(shape: tuple[int, ...], dtype: str, unit: Machine) -> tirx.PrimFunc:
    """The kernel (input, output) that copies a tensor."""
    return operator(concat.copy_of(shape, dtype), concat.kernel, unit)


def exchange(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]], unit: Machine) -> tirx.PrimFunc:
    """The kernel (cache, rows, write indices) by which rows of a cache change places with others."""
    return (gpu_copies.exchange_rows if isinstance(unit, Gpu) else scatter_rows.exchange)(spec, shapes)


def writing_rows(kernel: tirx.PrimFunc, spec: ScatterSpec, unit: Machine) -> tirx.PrimFunc:
    """The machine's kernel, for a kernel for CPUs that writes rows into a copy of a cache."""
    if not isinstance(unit, Gpu):
        return kernel
    past, update = (tuple(map(int, param.shape)) for param in kernel.params[:2])
    return gpu_copies.scatter_rows(spec, (past, update)).with_attrs(dict(kernel.attrs.items()))


def rows(spec, unit: Machine) -> RowKernel | None:
    """How an operator's kernel computes bands of rows; None if impossible."""
    bands = _BANDS.get(type(spec))
    return None if bands is None or isinstance(unit, Gpu) else row_kernel(bands, spec, unit.width)


def decoded_rows(text: str) -> RowKernel:
    """The inverse of RowKernel.encode."""
    known = (*_BANDS.values(), *(family.bands for family in registry.FAMILIES if family.bands))
    return RowKernel.decode(text, {(bands.takes.__name__, bands.family): bands for bands in known})


def attention_of(spec: AttentionSpec, unit: Machine) -> tuple[tirx.PrimFunc, str, tuple[tuple[int, ...], ...]]:
    """The kernel of an attention, its name, and the shapes of its scratch."""
    if isinstance(unit, Gpu):
        queries, _ = gpu_attention.parts(spec, unit.architecture)
        return gpu_attention.kernel(spec, unit.architecture), f"attention {min(queries, spec.queries)} queries", ()
    return attention.kernel(spec, unit), f"attention {attention.name(spec, unit)}", attention.scratch(spec, unit)


def adds_positions(unit: Machine) -> bool:
    """Whether kernels of attention compute scores by position."""
    return not isinstance(unit, Gpu)


def skips_hidden_keys(unit: Machine) -> bool:
    """Whether kernels of attention read keys from a number on that is known at run time only."""
    return not isinstance(unit, Gpu)


def scheduled(func: tirx.PrimFunc, target, architecture: Architecture | None) -> generic.Scheduled:
    """A function that no family takes, as a kernel for the CPU of a target, or for its GPU."""
    return fallback.schedule(func, architecture) if architecture else generic.schedule(func, target)


def bound(kernel: tirx.PrimFunc, architecture: Architecture | None) -> tirx.PrimFunc:
    """A kernel for a CPU unchanged, one for a GPU with loops that are bound to threads."""
    return fallback.as_threads(kernel) if architecture and not fallback.is_bound(kernel) else kernel

"""Which kernels there are for a machine: of the families for CPUs, or for GPUs.

Passes and lowering ask here, and go the same way for both. Without a family for GPUs the kernel for CPUs is taken, with
vectors of one number, as threads (`cuda/fallback.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from . import registry, space
from .cuda import attention as gpu_attention
from .cuda import copies as gpu_copies
from .cuda import embedding as gpu_embedding
from .cuda import fallback
from .cuda import pool as gpu_pool
from .cuda import registry as gpu_registry
from .cuda import rowwise as gpu_rowwise
from .cuda.architecture import Architecture
from .cuda.unit import Gpu
from .generic import schedule as generic
from .operators import attention, concat, scatter_rows
from .operators.attention_spec import AttentionSpec
from .operators.concat import ConcatSpec
from .operators.embedding import EmbeddingSpec
from .operators.pool import PoolSpec
from .operators.rowwise import RowSpec
from .operators.scatter_rows import ScatterSpec
from .registry import Candidate
from .row_bands import RowKernel, row_kernel
from .tiles.spec import ConvSpec, MatmulSpec
from .tiles.tile import VectorUnit

_GPU_OPERATORS: dict[type, Callable[..., tirx.PrimFunc]] = {
    ConcatSpec: gpu_copies.concat,
    EmbeddingSpec: gpu_embedding.kernel,
    PoolSpec: gpu_pool.kernel,
    RowSpec: gpu_rowwise.kernel,
}


def candidates(spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> tuple[Candidate, ...]:
    """The candidates for a layer."""
    if isinstance(unit, Gpu):
        return gpu_registry.candidates(spec, unit.architecture)
    return registry.candidates(spec, unit)


def every_candidate(spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> Sequence[Candidate]:
    """The candidates, and all other kernels that have a name."""
    return candidates(spec, unit) if isinstance(unit, Gpu) else space.space(spec, unit)


def named(spec: ConvSpec | MatmulSpec, unit: VectorUnit, name: str) -> Candidate | None:
    """The candidate of that name; None if there is none."""
    if isinstance(unit, Gpu):
        return next((candidate for candidate in candidates(spec, unit) if str(candidate) == name), None)
    return space.named(spec, unit, name)


def operator(spec, family: Callable[[object, int], tirx.PrimFunc], unit: VectorUnit) -> tirx.PrimFunc:
    """The kernel of an operator without weights; `family` makes the one for CPUs."""
    if isinstance(unit, Gpu) and type(spec) in _GPU_OPERATORS:
        return _GPU_OPERATORS[type(spec)](spec)
    return family(spec, unit.width)


def copy(shape: tuple[int, ...], dtype: str, unit: VectorUnit) -> tirx.PrimFunc:
    """The kernel (input, output) that copies a tensor."""
    return operator(concat.copy_of(shape, dtype), concat.kernel, unit)


def exchange(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]], unit: VectorUnit) -> tirx.PrimFunc:
    """The kernel (cache, rows, write indices) by which rows of a cache change places with others."""
    return (gpu_copies.exchange_rows if isinstance(unit, Gpu) else scatter_rows.exchange)(spec, shapes)


def writing_rows(kernel: tirx.PrimFunc, spec: ScatterSpec, unit: VectorUnit) -> tirx.PrimFunc:
    """The machine's kernel, for a kernel for CPUs that writes rows into a copy of a cache."""
    if not isinstance(unit, Gpu):
        return kernel
    past, update = (tuple(map(int, param.shape)) for param in kernel.params[:2])
    return gpu_copies.scatter_rows(spec, (past, update)).with_attrs(dict(kernel.attrs.items()))


def rows(spec, unit: VectorUnit) -> RowKernel | None:
    """How an operator's kernel computes bands of rows; None if impossible."""
    return None if isinstance(unit, Gpu) else row_kernel(spec, unit.width)


def attention_of(spec: AttentionSpec, unit: VectorUnit) -> tuple[tirx.PrimFunc, str, tuple[tuple[int, ...], ...]]:
    """The kernel of an attention, its name, and the shapes of its scratch."""
    if isinstance(unit, Gpu):
        queries, _ = gpu_attention.parts(spec, unit.architecture)
        return gpu_attention.kernel(spec, unit.architecture), f"attention {min(queries, spec.queries)} queries", ()
    lanes = max(blocks.vectors for blocks in attention.blocks_of(spec, unit)) * unit.width
    name = f"attention {min(lanes, spec.queries)} queries"
    return attention.kernel(spec, unit), name, attention.scratch(spec, unit)


def adds_positions(unit: VectorUnit) -> bool:
    """Whether kernels of attention compute scores by position."""
    return not isinstance(unit, Gpu)


def scheduled(func: tirx.PrimFunc, target, architecture: Architecture | None) -> generic.Scheduled:
    """A function that no family takes, as a kernel for the CPU of a target, or for its GPU."""
    return fallback.schedule(func, architecture) if architecture else generic.schedule(func, target)


def bound(kernel: tirx.PrimFunc, architecture: Architecture | None) -> tirx.PrimFunc:
    """A kernel for a CPU unchanged, one for a GPU with loops that are bound to threads."""
    return fallback.as_threads(kernel) if architecture and not fallback.is_bound(kernel) else kernel

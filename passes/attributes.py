"""Names of the attributes by which decisions travel in the IR. The pass that consumes an attribute removes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm import tirx

from ..schedules.row_bands import RowKernel
from ..schedules.tiles.place import Place

# On a layer function (set by FuseLayers, consumed by PretransformWeights): the anchor operator, e.g. "conv2d".
LAYER = "flexcomp.layer"
# On a layer function (set by FuseLayers, consumed by PretransformWeights): which parameters come from weights.
WEIGHTS = "flexcomp.weights"
# On a layer function (set by SharePanels, consumed by PretransformWeights): the parameters that are the panel's channel vectors,
# in order, those that other layers read among them.
VECTORS = "flexcomp.vectors"  # list of int
# On a layer function (set by PlaceParts, consumed by PretransformWeights): the number of the concatenation that the
# result is a part of, and its place there; `encode_place` has the form.
PLACE = "flexcomp.place"
# On a layer function (set by FuseLayers, consumed by PretransformWeights): the element type of its weights,
# if not float32. After VALUES_OF, float32 with the values of that type.
DTYPE = "flexcomp.dtype"
VALUES_OF = "values of "
# On a layer function (set by FuseLayers, consumed by PretransformWeights): the least value of its input, where that holds
# integers, 0 among them, within 8 bits.
INTEGERS = "flexcomp.integers"  # int
# On a layer function (set by FuseLayers, consumed by PretransformWeights): the fields of FirstTaps, where some
# channels lack taps.
FIRST_TAPS = "flexcomp.first_taps"  # list of int
# On a layer function (set by ChooseKernels, consumed by PretransformWeights): the candidate, e.g. "direct 14×32".
KERNEL = "flexcomp.kernel"
# On a layer function (set by ChooseKernels, consumed by PretransformWeights): the kernel's measured time, if known.
# Then on the kernel, for the lowering.
SECONDS = "flexcomp.seconds"  # float
# On a layer function (set by SliceLayers, consumed by PretransformWeights): into how many equal ranges of output
# channels the layer can be cut at most.
BLOCKS = "flexcomp.blocks"

# On a kernel PrimFunc of a recurrent layer, for the tuner: RecurrentSpec.encode of schedules/recurrent/spec.py.
RECURRENCE = "flexcomp.recurrence"  # str

# On a kernel PrimFunc of attention (set by FuseAttention and LowerAttention, consumed by NarrowStates): AttentionSpec.encode of
# schedules/operators/attention_spec.py.
ATTENTION = "flexcomp.attention"  # str

# On a kernel PrimFunc of no family, for the lowering: its operators, in order.
COMPUTES = "flexcomp.computes"  # list of str

# On a kernel PrimFunc, for the lowering to a Program: its operator and implementation.
OPERATOR = "flexcomp.operator"  # str, e.g. "conv2d"
IMPLEMENTATION = "flexcomp.implementation"  # str, e.g. "direct 14×32"
DESCRIPTION = "flexcomp.description"  # str, e.g. "3×3 64→64 @ 56×56 +relu"
FLOPS = "flexcomp.flops"  # int
WORK = "flexcomp.work"  # float: operations, weighted by how fast this kernel does them
SLICES = "flexcomp.slices"  # int: blocks of the panel; the kernel takes (first, count) before its output
CANDIDATES = "flexcomp.candidates"  # list of (implementation, scratch bytes, weight bytes, work) of all candidates
ROWS = "flexcomp.rows"  # str, where the kernel can be made for a band of rows: RowKernel.encode of schedules/row_bands.py
# On a kernel PrimFunc (tensor, rows, at) → tensor with the rows written: ScatterSpec.encode of
# schedules/operators/scatter_rows.py. Where the tensor is a state, rows may change places instead.
EXCHANGE = "flexcomp.exchange"  # str
EXCHANGED = "flexcomp.exchanged"  # list of int: the parameters whose contents change places
# On a kernel PrimFunc: (low, high) of the integers that may stand in the first operand, high excluded; see ValueArg.bounds.
BOUNDS = "flexcomp.bounds"  # list of pairs of int
FETCH = "flexcomp.fetch"  # str: looks rows up in a table, EmbeddingSpec.encode of schedules/operators/embedding.py
IN_PLACE = "flexcomp.in_place"  # list of int: the operands that the result may be written over
PART = "flexcomp.part"  # float, below 1: the part of its output tensor that the kernel touches
FORM = "flexcomp.form"  # str: the form of its weights, WeightForm.encode of schedules/preparation.py
SCRATCH = "flexcomp.scratch"  # list of shapes: buffers, float32 on kernels with OPERATOR, taken after the outputs

# On a kernel PrimFunc of a custom operator (set by Node.call, consumed by NarrowWeights): the operands that, where these are
# weights, may have fewer bits.
NARROW = "flexcomp.narrow"  # list of int

# On a kernel PrimFunc: the operands whose rows are those of the results, where indices need not show that; if these are EXTENT.
BY_ROWS = "flexcomp.by_rows"  # list of int
# On a kernel PrimFunc: loops over rows of its results fill all scratch anew in each iteration.
ANEW = "flexcomp.anew"  # int, 1
# On a kernel PrimFunc: the one that takes the number of valid rows after its results, and computes no others. It has EXTENT rows
# in all, and so must the operands have that are its own BY_ROWS.
TOLD = "flexcomp.told"  # PrimFunc
EXTENT = "flexcomp.extent"  # int
# On a kernel PrimFunc that is told how many rows are valid (schedules/valid_rows): which parameter that is.
VALID = "flexcomp.valid"  # int

# On a kernel PrimFunc that calls a function in C: its source, CKernel.encode of schedules/operators/c_kernel.py.
C_SOURCE = "flexcomp.c_source"  # str
WRITTEN = "flexcomp.written"  # list of int: on such a kernel, the parameters that the function in C writes

# On a PrimFunc that prepares weights: the output channels of the layer, of a stored block, and of a prepared one.
CHANNELS = "flexcomp.channels"  # list of int


def encode_place(concatenation: int, place: Place) -> list[int]:
    """The value of PLACE."""
    return [concatenation, place.start, place.stride, *place.shape]


def decode_place(value) -> tuple[int, Place]:
    """The number of the concatenation and the place that a value of PLACE says."""
    concatenation, start, stride, *shape = (int(number) for number in value)
    return concatenation, Place(tuple(shape), start, stride)


def with_told(kernel: tirx.PrimFunc, told: tirx.PrimFunc, extent: int, operands: Sequence[int]) -> tirx.PrimFunc:
    """The kernel with TOLD."""
    return kernel.with_attr(TOLD, told.with_attrs({EXTENT: extent, BY_ROWS: list(operands)}))


def with_scratch(kernel: tirx.PrimFunc, shapes: Iterable[Sequence[int]]) -> tirx.PrimFunc:
    """The kernel with SCRATCH."""
    return kernel.with_attr(SCRATCH, [[int(extent) for extent in shape] for shape in shapes])


def kernel_attributes(
    operator: str,
    implementation: str,
    description: str,
    flops: int,
    slices: int = 1,
    scratch: tuple[tuple[int, ...], ...] = (),
    work: float | None = None,
    rows: RowKernel | None = None,
    seconds: float | None = None,
) -> dict:
    """The attributes of a kernel that generic fusion leaves alone."""
    return {
        **({ROWS: rows.encode()} if rows else {}),
        OPERATOR: operator,
        IMPLEMENTATION: implementation,
        DESCRIPTION: description,
        FLOPS: flops,
        WORK: float(flops if work is None else work),
        SLICES: slices,
        SCRATCH: [list(shape) for shape in scratch],
        "op_pattern": 8,  # opaque
        **({} if seconds is None else {SECONDS: seconds}),
    }

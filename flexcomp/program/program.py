"""The Program: a compiled network as plain data, before it is encoded into an artifact.

Layers are the operators, once for all budgets. Rungs say where every byte lies and when it is
loaded, one rung per budget. Nothing here knows TVM; `flexcomp.program.program_bytes` gives the byte layout that
the runtime reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import ClassVar

from flexcomp import deprecated
from flexcomp.deprecated import OldAttribute
from flexcomp.plan import stored_blocks

from .tapes import Delivery, Prepare, Read, Step, Tapes

PAGE = 4096  # bytes; unit of O_DIRECT reads: file ranges and arena targets of loads are multiples of this
ALIGN = 64  # bytes; every tensor, weight and scratch address handed to a kernel is a multiple of this
DEFAULT = "default"  # metadata of a program: the budget of sessions that ask for none, in bytes
EXTENTS = "extents"  # metadata of a program in a library of several shapes: its extents by name, as JSON
HOST, CUDA = "host", "cuda"  # memory of a CPU, and of a GPU

_ITEMSIZE = {
    "float64": 8, "int64": 8, "uint64": 8,
    "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """A static shape and an element type."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Size in bytes, without padding."""
        return math.prod(self.shape) * _ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{'×'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Value:
    """An activation: one place in the arena. Views (reshapes) share the value."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class ValueArg:
    """A kernel argument that is an activation, or a contiguous part of one, seen with `type`."""

    value: int  # index into Program.values
    type: TensorType
    written: bool = False
    offset: int = 0  # bytes from the start of the value; multiple of ALIGN
    part: float = 1.0  # of the bytes of `type` that the kernel writes, or exchanges
    over: bool = False  # is read, and the layer's only result may overwrite this value
    # (low, high) of its integers, high excluded: one pair for all, or one for each place of the last axis. Integers are
    # checked before the step runs; others are an InputError, which begins with the layer's description.
    bounds: tuple[tuple[int, int], ...] = ()
    exchanged: bool = False  # one of the two arguments between which the kernel exchanges bytes, `part` of them

    @property
    def touched_nbytes(self) -> int:
        """Bytes that the kernel reads or writes."""
        return round(self.type.nbytes * self.part)


@dataclass(frozen=True)
class WeightArg:
    """A kernel argument inside the layer's weights. Those of a layer follow each other, each at a multiple of ALIGN."""

    offset: int  # bytes from the start of the layer's weights
    type: TensorType


@dataclass(frozen=True)
class ScratchArg:
    """A kernel argument inside the layer's scratch. Those of a layer follow each other, each at a multiple of ALIGN."""

    offset: int  # bytes from the start of the layer's scratch
    type: TensorType


@dataclass(frozen=True)
class Strided:
    """Elements of every row of a block that holds several rows: element i of row j lies at `at + (i · rows + j) · nbytes`."""

    at: int  # bytes from the start of the block
    nbytes: int  # of an element
    count: int


@dataclass(frozen=True)
class Interleaved:
    """A table in blocks of as many rows, interleaved: the panel of a layer that reads the table as its weights.

    The last block ends with the last row, so that block may hold rows of the previous one, too.
    """

    rows: int  # of a block; at most those of the table
    block_nbytes: int
    parts: tuple[Strided, ...]  # a row is the elements of all parts, one after the other


@dataclass(frozen=True)
class RowsArg:
    """A kernel argument inside the layer's scratch, filled before the layer runs: rows of a table that lies in the file.

    Row i is that of the number i in the previous argument, int32 or int64; numbers outside of the table mean its first or last
    row. After the rows is room for reading one row, or its block. The table does not belong to the layer's weights: no load
    reads the table.
    """

    offset: int  # bytes from the start of the layer's scratch
    type: TensorType  # (numbers, elements of a row)
    table: int  # bytes from the start of the data section; multiple of ALIGN
    rows: int  # of the table
    interleaved: Interleaved | None = None  # None: rows follow each other

    @property
    def row_nbytes(self) -> int:
        return self.type.nbytes // self.type.shape[0]

    @property
    def table_nbytes(self) -> int:
        if self.interleaved is None:
            return self.rows * self.row_nbytes
        return -(-self.rows // self.interleaved.rows) * self.interleaved.block_nbytes

    @property
    def piece_nbytes(self) -> int:
        """Bytes of the file that hold a row."""
        return self.interleaved.block_nbytes if self.interleaved else self.row_nbytes

    @property
    def room_nbytes(self) -> int:
        """Bytes of scratch: the rows, and pages that a piece touches, from wherever in a page the scratch begins."""
        return -(-self.type.nbytes // ALIGN) * ALIGN + (self.piece_nbytes // PAGE + 3) * PAGE

    @property
    def read_nbytes(self) -> int:
        """Bytes that are read, at most, for each row."""
        return (self.piece_nbytes // PAGE + 2) * PAGE


@dataclass(frozen=True)
class FirstArg:
    """The int32 kernel argument: first output-channel block of the step."""


@dataclass(frozen=True)
class CountArg:
    """The int32 kernel argument: number of output-channel blocks of the step."""


@dataclass(frozen=True)
class ValidArg:
    """The int64 kernel argument, after the results: how many rows of padded inputs are valid. Any number may be more than all.

    The kernel computes these rows of its results, and writes zeros to the others.
    """

    ALL: ClassVar[int] = 2**63 - 1


Arg = ValueArg | WeightArg | ScratchArg | RowsArg | FirstArg | CountArg | ValidArg


@dataclass(frozen=True)
class Preparation:
    """The preparation of a layer's weights, during loading, from stored blocks: another kernel's panel.

    `kernel` takes (stored blocks, first, count, prepared blocks), where first and count are of the prepared ones. Blocks are
    ranges of `channels` output channels, as many as the last axis of a panel has; the last block ends with the last channel.
    """

    kernel: str  # as Layer.kernel, with signature.of_preparation(layer)
    stored: TensorType  # the panel of all stored blocks
    channels: int

    @property
    def block_nbytes(self) -> int:
        """Bytes of a stored block."""
        return self.stored.nbytes // self.stored.shape[0]

    def range_of(self, panel: TensorType, first: int, count: int) -> tuple[int, int]:
        """(first, count) of the stored blocks that blocks of `panel` are made of."""
        return stored_blocks(self.channels, self.stored.shape[-1], panel.shape[-1], first, count)


@dataclass(frozen=True)
class Weights:
    """The weights of one layer: a contiguous range of the weights file's data section.

    A layer with `blocks` > 1 can be computed in slices, and has one WeightArg, whose first axis are the blocks; FirstArg
    and CountArg follow. The step (first, count) needs only bytes [first, first + count) × block_nbytes, and its
    WeightArg points at the first of them.
    """

    offset: int  # bytes from the start of the data section, of stored weights where these are prepared; multiple of ALIGN
    blocks: int
    block_nbytes: int  # multiple of ALIGN if blocks > 1
    preparation: Preparation | None = None

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_nbytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes in the file."""
        return self.preparation.stored.nbytes if self.preparation else self.nbytes


@dataclass(frozen=True)
class Layer:
    """One fused call: `kernel` is the symbol in the library, `args` its arguments in order."""

    name: str  # unique, printable; a band of a layer is called "layer[first row:last row]", maybe with a number after that
    op: str  # e.g. "conv2d"
    kernel: str  # its name; the symbol in the library is signature.symbol(kernel, signature.of_layer(layer))
    implementation: str  # e.g. "direct 14×32"
    description: str  # the computation, for people, e.g. "3×3 64→64 @ 56×56 +relu"
    args: tuple[Arg, ...]
    weights: Weights | None
    scratch_nbytes: int
    flops: int

    @property
    def panel(self) -> WeightArg:
        """The argument whose blocks its steps have, of a layer with more than one."""
        return next(arg for arg, behind in pairwise(self.args) if isinstance(behind, FirstArg))

    @property
    def exchanges(self) -> bool:
        """Whether it writes into a state, with the old bytes kept in its other arguments: a second call restores the state.

        Its arguments are values only, all of which stay until the inference is complete.
        """
        return any(isinstance(arg, ValueArg) and arg.exchanged for arg in self.args)

    @property
    def fetched(self) -> RowsArg | None:
        """The rows that are fetched before the layer runs."""
        return next((arg for arg in self.args if isinstance(arg, RowsArg)), None)

    @property
    def band_of(self) -> str | None:
        """The name of the layer of which this one computes some rows; None for a whole layer."""
        base, bracket, _ = self.name.partition("[")
        return base if bracket else None


@dataclass(frozen=True)
class Port:
    """An input or output of the network."""

    name: str
    value: int
    type: TensorType


@dataclass(frozen=True)
class State:
    """A tensor that stays from one inference to the next: read as an input, and made anew as an output.

    A state is neither given nor returned. Inferences read states from one value that all states share; when an inference is
    complete, and cannot fail or begin anew any more, the result is copied there. Or a layer exchanges bytes of the state: then
    the result is the state, and an incomplete inference exchanges the bytes again. Without such a layer it stays as it was set.
    """

    input: str
    output: str
    type: TensorType
    value: int  # index of the value that holds all states; layers read that value, or exchange its bytes
    offset: int  # bytes from the start of that; multiple of ALIGN
    # Index of the value that holds the output, from its start on; `value`: a layer exchanges bytes of the state, or none does.
    result: int


@dataclass(frozen=True)
class Rung:
    """Addresses, steps and tapes for one budget."""

    budget: int  # bytes asked for
    arena: int  # bytes used, ≤ budget; multiple of PAGE
    # Of these, the first ones, which hold only what is loaded ahead between two inferences; after them lie states and weights
    # that stay. Nothing lies across the border. Multiple of PAGE.
    working: int
    value_at: tuple[int, ...]  # arena address of each value; -1 for values that no step of the rung uses
    steps: tuple[Step, ...]
    tapes: Tapes
    seconds: float  # predicted for one inference in the steady state

    predicted_s = OldAttribute("predicted_ms", deprecated.seconds)

    @property
    def predicted_ms(self) -> float:
        """Predicted milliseconds of one inference in the steady state."""
        return 1e3 * self.seconds

    @property
    def order(self) -> tuple[int, ...]:
        """Its layers, in the order of computing; slices of one count once."""
        return tuple(layer for layer, _ in groupby(step.layer for step in self.steps))


@dataclass(frozen=True)
class Program:
    """Everything the runtime needs besides machine code and weights."""

    model: str  # name, for people
    target: str
    features: tuple[str, ...]  # CPU features the kernels need, as in /proc/cpuinfo
    threads: int  # threads the kernels were scheduled for
    values: tuple[Value, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    layers: tuple[Layer, ...]
    rungs: tuple[Rung, ...]  # ascending by budget
    weights_nbytes: int  # size of the weights file's data section
    metadata: dict[str, str] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    space: str = HOST  # the memory in which the arena lies: whoever computes reads and writes there

    @property
    def default_budget(self) -> int:
        """The budget, in bytes, of sessions that ask for none: that of the rung that the build noted, or else the largest."""
        noted = self.metadata.get(DEFAULT)
        return next((rung.budget for rung in self.rungs if str(rung.budget) == noted), self.rungs[-1].budget)

    @property
    def state_nbytes(self) -> int:
        """Bytes of the arena for states, on every rung."""
        return self.values[self.states[0].value].nbytes if self.states else 0

    @property
    def given(self) -> tuple[int, ...]:
        """The values that hold something before the first step: inputs, and the states."""
        return tuple(dict.fromkeys([*(port.value for port in self.inputs), *(state.value for state in self.states)]))

    @property
    def wanted(self) -> tuple[int, ...]:
        """The values that are needed after the last step: outputs, states, their results, and values that restore exchanges."""
        states = [value for state in self.states for value in (state.value, state.result)]
        exchanged = [arg.value for layer in self.layers if layer.exchanges for arg in layer.args]
        return tuple(dict.fromkeys([*(port.value for port in self.outputs), *states, *exchanged]))

    def pinned_nbytes(self, rung: Rung) -> int:
        """Bytes of weights that stay in the arena between inferences."""
        return sum(self.place_of(one)[1] for one in rung.tapes.filled)

    def streamed_nbytes(self, rung: Rung) -> int:
        """Bytes of weights that every inference reads."""
        operations = (rung.tapes.operations[index] for index, _ in rung.tapes.steady.turns)
        return sum(one.nbytes for one in operations if isinstance(one, Read))

    def place_of(self, one: Delivery) -> tuple[int, int]:
        """(address, bytes) of weights in the arena, once they are delivered: prepared ones, if they are prepared."""
        return (one.prepare.to, self.prepared_nbytes(one.prepare)) if one.prepare else one.brought

    def prepared_nbytes(self, made: Prepare) -> int:
        """Bytes of prepared weights."""
        weights = self.layers[made.layer].weights
        assert weights is not None
        return made.count * weights.block_nbytes

"""The byte format of the program inside MODEL.so, of which this module is the authority.

The reader on the device is `runtime_ext/src/program/reader.cc`.

Program, format 11. Everything is little-endian and unpadded; counts and indices are u32:

    program  = "FLEXPROG" version:u32=11 crc:u32 size:u64 plans_at:u64 body plans:plan[len(rungs)]
               size counts all bytes of the program, the plans begin at byte plans_at; crc is the CRC-32 (zlib) of all bytes
               from `size` to there
    body     = model:str target:str features:list<str> threads:u32 metadata:list<key:str value:str>
               weights spaces:list<str> values:list<value> inputs:list<port> outputs:list<port> states:list<state>
               layers:list<layer> rungs:list<rung>
    weights  = file_nbytes:u64 header_nbytes:u64 header_crc:u32 data_nbytes:u64 checksums:list<checksum>
    checksum = offset:u64 nbytes:u64 crc:u32          ranges that follow each other, of the whole data section
    value    = name:str nbytes:u64 space:u32          an index into `spaces`
    port     = name:str value:u32 type
    state    = input:str output:str value:u32 offset:u64 result:u32 type
               an input that the network gives itself: from byte `offset` of `value` on, the same value for all, in whole pages
               and of nobody else, until the inference is complete; then it becomes what `result` holds. If that is `value`, a
               layer has exchanged bytes of it
    type     = code:u8 bits:u8 lanes:u16=1 shape:list<i64>                 code as in DLPack
    layer    = name:str op:str kernel:str implementation:str description:str flops:u64 weights_at:u64 args:list<arg>
               preparations:list<preparation>             one or none
               weights_at: where its weights begin in the data section, those that are stored; 0 if it has none
    preparation = kernel:str stored:type channels:u32
    arg      = 0:u8 value:u32 offset:u64 type bounds:list<bound>   activation that is read, from byte `offset` of the value on
             | 1:u8 value:u32 offset:u64 type bounds:list<bound>   the same, and the layer's result may be written over it
             | 2:u8 value:u32 offset:u64 type written:u64          activation that is written, so many bytes of it
             | 7:u8 value:u32 offset:u64 type exchanged:u64        activation of which so many bytes are exchanged with another's
             | 3:u8 type                                           weights
             | 4:u8 type                                           scratch
             | 8:u8 table:u64 rows:u64 type                        rows of a table at this byte of the data section, in scratch
             | 9:u8 table:u64 rows:u64 type block:u64 lanes:u32 parts:list<part>     the same, of blocks of interleaved rows
             | 5:u8                                                first block of the step, int32
             | 6:u8                                                number of blocks of the step, int32
             | 10:u8                                               number of valid rows, int64
    part     = at:u64 nbytes:u32 count:u64            elements of a row: element i of lane j lies at byte
               at + (i * lanes + j) * nbytes of the block
    bound    = low:i64 high:i64                       element i lies in [low, high) of bound i modulo their number
    rung     = budget:u64 arena:u64 working:u64 predicted_s:f64 pinned:u64 streamed:u64
               steps:u32 operations:u32 runs:u32 first_steps:u32 nbytes:u64 crc:u32
                                                  of its plan: how much each list holds, its bytes, and their CRC-32
               pinned, streamed: bytes of weights that stay between inferences, and that each of them reads, as its plan has it
    plan     = value_at:i64[len(values)] steps:list<step> first_steps:list<other> operations:list<operation> tapes:list<tape>
    step     = layer:u32 first:u32 count:u32 weights_at:i64 scratch_at:i64
    other    = number:u32 step                    the first inference computes it instead of the step with this number
    operation = 0:u8 load:u32 source:u32 nbytes:u32 to:u32     read, from the data section to the arena, in pages
             | 1:u8 load:u32 source:u32 nbytes:u32 to:u32      the same, at any time: nothing uses the place before its turn
             | 2:u8 load:u32 source:u32 nbytes:u32 to:u32      copy within the arena, in pages
             | 3:u8 load:u32 layer:u32 first:u32 count:u32 source:u64 to:u64      prepare blocks of a layer, from the
               stored ones that begin at `source`
    tape     = runs:list<run> need:list<u32>
    run      = operation:u32 count:u32 after:i32  neighbours in the table of operations, each when so many steps are computed
    str      = nbytes:u32 UTF-8
    list<x>  = count:u32 x*

Metadata "digests": BLAKE2b-128 of stored weights of layers, by which models of a pool find that they have equal ones
(`flexcomp/program/digest.py`). A session that puts weights where others read them checks the weights against it.

Plans are in the order of the rungs. A reader need not look at one before it executes it.

Versions. A reader takes formats from OLDEST_VERSION to its own, and refuses others. Format 10 is the same without argument 10
and without a runtime that pads. A change that older readers would misread takes the next number; OLDEST_VERSION moves only when
reading an old format costs more than building networks again. A library has the runtime of its own format, which Python and the
runner use; the C interface reads programs itself.

A library of several shapes of one network holds their programs, the one with the largest inputs first:

    shapes   = "FLEXSHPS" count:u32 size:u64[count] programs:program[count]      2 to 16, each of so many bytes

They have the same target, features and threads, in space "host"; the same names, types and ranks of ports, whose extents
differ; the same states, in one value of the same bytes; and the same `weights`. Metadata "extents" of each: JSON, its extents
by name.

A layer that exchanges has two arguments 7, one of them a state that becomes `value`, and besides only arguments 0. The same
call again takes it back, when an inference is not completed: all its values stay until then.

Arguments 8 and 9 are filled before the layer runs, with the rows of numbers in the argument before it; a layer has one at most.
Its type has two axes, numbers and elements of a row; after it in the scratch is room for the pages of one row, or of its block
(`RowsArg.room_nbytes`). Blocks of argument 9 have `block` bytes and `lanes` rows, no more than the table; the last block ends
with the last row. A row consists of all parts, one after the other.

The weights of a layer follow each other in the order of its arguments, each from a multiple of ALIGN on; likewise its
scratch. Arguments 5 and 6 come together, behind the only weights of their layer, whose first axis are its blocks; any
other layer has one block, all its weights. The symbol of a kernel in the library is its name and a hash of what it takes:
`flexcomp/program/signature.py`.

Tapes are `first`, `fill`, `steady`, and where there are first_steps `second` and `settle` (`flexcomp/program/tapes.py`). A
tape has no more operations than the table. An operation begins after `after` steps of the inference, and completes after the
operations before it. A negative `after` of -n is in the inference before, n - 1 steps before its end; these come first, in
`steady` and `second` only. The list `need` has an item for each step: so many operations of the tape are complete before it.
`fill` and `settle` compute nothing and have no such list. Operations 1 are in `first` and `fill` only. The number of a load
is for people; operations stand in the table by their loads.

What stays, states and weights, lies in bytes [working, arena) of the arena, all else in [0, working). Operations of `steady`
write nothing to what stays; those of `second` and `settle` write the same there in the same order. Memory spaces other than
space 0, which is "host" or "cuda", are reserved: a reader refuses what it does not know. Space "cuda" is the memory of a GPU,
which computes: symbols of kernels are data there (`flexcomp/program/device_kernel.py`), nothing is copied or prepared, and
there are no arguments 8 and 9. A layer whose weights are prepared takes blocks of them.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise

from flexcomp.errors import ArtifactError
from flexcomp.printable import printable

from .digest import DIGESTS, Checksum, WeightsDigest, from_metadata, to_metadata
from .program import (
    ALIGN,
    CUDA,
    HOST,
    PAGE,
    Arg,
    CountArg,
    FirstArg,
    Interleaved,
    Layer,
    Port,
    Preparation,
    Program,
    RowsArg,
    Rung,
    ScratchArg,
    State,
    Strided,
    TensorType,
    ValidArg,
    Value,
    ValueArg,
    WeightArg,
    Weights,
)
from .tapes import Copy, Operation, Prepare, Read, Step, Tape, Tapes

PROGRAM_VERSION, OLDEST_VERSION = 11, 10
PROGRAM_KIND = f"flexcomp.program.{PROGRAM_VERSION}"  # kind of the module in the library: the version is part of it

_MAGIC = b"FLEXPROG"
_SHAPES = b"FLEXSHPS"
_PREFIX = struct.Struct("<8sII")  # magic, version, crc; the checksum starts behind it
_SIZES = struct.Struct("<QQ")  # of the program, and where its plans begin
_AT_ITS_TURN, _EARLY, _COPY, _PREPARE = range(4)  # operations
_READ, _OVER, _WRITTEN, _WEIGHT, _SCRATCH, _FIRST, _COUNT, _EXCHANGED, _ROWS, _INTERLEAVED, _VALID = range(11)

# dtype name → DLPack type code and bits
_DTYPES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "bfloat16": (4, 16), "bool": (6, 8),
}  # fmt: skip
_DTYPE_NAMES = {code: name for name, code in _DTYPES.items()}


def encode_program(program: Program, weights: WeightsDigest) -> bytes:
    """The bytes the runtime reads. The same program and digest give the same bytes."""
    if program.weights_nbytes != weights.data_nbytes:
        raise ValueError(f"the program expects {program.weights_nbytes} bytes of weights, the file holds {weights.data_nbytes}")
    out = _Writer()
    out.text(program.model)
    out.text(program.target)
    out.items(program.features, out.text)
    out.put("I", program.threads)
    metadata = program.metadata | to_metadata(_stored(program.layers), weights.digests)
    out.items(sorted(metadata.items()), lambda item: (out.text(item[0]), out.text(item[1])))
    out.put("QQIQ", weights.file_nbytes, weights.header_nbytes, weights.header_crc, weights.data_nbytes)
    out.items(weights.checksums, lambda c: out.put("QQI", c.offset, c.nbytes, c.crc))
    out.items((program.space,), out.text)
    out.items(program.values, lambda v: (out.text(v.name), out.put("QI", v.nbytes, 0)))
    for ports in (program.inputs, program.outputs):
        out.items(ports, lambda p: (out.text(p.name), out.put("I", p.value), out.type(p.type)))
    out.items(program.states, out.state)
    out.items(program.layers, out.layer)
    plans = [_encode_plan(rung) for rung in program.rungs]
    out.items([*zip(program.rungs, plans, strict=True)], lambda of: out.rung(program, *of))
    plans_at = _PREFIX.size + _SIZES.size + len(out.data)
    head = _SIZES.pack(plans_at + sum(map(len, plans)), plans_at) + out.data
    return b"".join((_PREFIX.pack(_MAGIC, PROGRAM_VERSION, zlib.crc32(head)), head, *plans))


def encode_shapes(programs: Sequence[Program], weights: WeightsDigest) -> bytes:
    """The bytes of a library for programs of one network in several shapes, or in one: then as `encode_program`."""
    encoded = [encode_program(program, weights) for program in programs]
    if len(encoded) == 1:
        return encoded[0]
    return b"".join((_SHAPES, struct.pack(f"<I{len(encoded)}Q", len(encoded), *map(len, encoded)), *encoded))


def decode_shapes(blob: bytes) -> tuple[Program, ...]:
    """The inverse of `encode_shapes`. Raises ArtifactError for anything that is not such bytes."""
    return tuple(_decode(one)[0] for one in _split(blob))


def _split(blob: bytes) -> list[bytes]:
    """The encoded programs."""
    if not blob.startswith(_SHAPES):
        return [blob]
    try:
        (count,) = struct.unpack_from("<I", blob, len(_SHAPES))
        sizes = struct.unpack_from(f"<{count}Q", blob, at := len(_SHAPES) + 4)
    except struct.error as error:
        raise ArtifactError(f"the shapes of the network are malformed: {error}") from None
    edges = list(accumulate(sizes, initial=at + 8 * count))
    if edges[-1] != len(blob):
        raise ArtifactError(f"the shapes of the network are malformed: {len(blob)} bytes instead of {edges[-1]}")
    return [blob[begin:end] for begin, end in pairwise(edges)]


def decode_program(blob: bytes) -> Program:
    """The inverse of `encode_program`; of several shapes the largest. Raises ArtifactError for anything else."""
    return _decode(_split(blob)[0])[0]


def decode_weights_digest(blob: bytes) -> WeightsDigest:
    """What the encoded program says of its weights file."""
    return _decode(_split(blob)[0])[1]


def _decode(blob: bytes) -> tuple[Program, WeightsDigest]:
    try:
        magic, version, crc = _PREFIX.unpack_from(blob)
        size, plans_at = _SIZES.unpack_from(blob, _PREFIX.size)
    except struct.error:
        raise ArtifactError(f"not a program: {len(blob)} bytes are too few") from None
    if magic != _MAGIC:
        raise ArtifactError("not a program: wrong magic")
    if not OLDEST_VERSION <= version <= PROGRAM_VERSION:
        formats = f"formats {OLDEST_VERSION} to {PROGRAM_VERSION}"
        raise ArtifactError(f"the program has format {version}, this flexcomp reads {formats}")
    if size != len(blob):
        raise ArtifactError(f"the program is cut or extended: {len(blob)} bytes instead of {size}")
    if not _PREFIX.size + _SIZES.size <= plans_at <= size:
        raise ArtifactError("the program is malformed: its plans are not in it")
    if zlib.crc32(memoryview(blob)[_PREFIX.size : plans_at]) != crc:
        raise ArtifactError("the program is damaged: its checksum differs")
    try:
        return _Reader(blob[:plans_at], _PREFIX.size + _SIZES.size).program(blob[plans_at:])
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ArtifactError(f"the program is malformed: {error}") from None


def _stored(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Ranges of the data section that are weights of layers."""
    return [(layer.weights.offset, layer.weights.stored_nbytes) for layer in layers if layer.weights]


def _encode_plan(rung: Rung) -> bytes:
    out = _Writer()
    try:
        out.plan(rung)
    except struct.error as error:
        raise ValueError(f"the plan for {rung.budget} bytes cannot be written: {error}") from None
    return bytes(out.data)


def _counts(steps: Sequence[Step], tapes: Tapes) -> tuple[int, ...]:
    """As a rung says them of its plan."""
    return len(steps), len(tapes.operations), sum(len(tape.runs) for tape in tapes.all), len(tapes.first_steps)


def _complete(tapes: Tapes, steps: int, layers: int) -> bool:
    """Whether operations, steps and layers exist that tapes name."""
    made = [one.layer for one in tapes.operations if isinstance(one, Prepare)]
    turns = [index for tape in tapes.all for index, _ in tape.turns]
    return (
        max(made + [step.layer for _, step in tapes.first_steps], default=-1) < layers
        and max((number for number, _ in tapes.first_steps), default=-1) < steps
        and max(turns, default=-1) < len(tapes.operations)
        and all(max(tape.need, default=0) <= len(tape.turns) for tape in tapes.all)
        and all(len(tape.need) == steps for tape in (tapes.first, tapes.steady, tapes.second) if tape)
    )


def _weights_nbytes(program: Program, rung: Rung) -> tuple[int, int]:
    """Those that stay and those that are read; anything for plans that no reader takes."""
    try:
        return program.pinned_nbytes(rung) % (1 << 64), program.streamed_nbytes(rung) % (1 << 64)
    except (AssertionError, AttributeError, IndexError):
        return 0, 0


def _laid_out(
    args: Sequence[Arg], weights_at: int, preparations: Sequence[Preparation]
) -> tuple[tuple[Arg, ...], Weights | None, int]:
    """The arguments with the offsets that they must have, the layer's weights, and the bytes of its scratch."""
    ends = {WeightArg: 0, ScratchArg: 0}
    placed: list[Arg] = []
    blocks = 1
    for arg in args:
        if isinstance(arg, FirstArg) and placed and isinstance(placed[-1], WeightArg):
            blocks = max((*placed[-1].type.shape, 1)[0], 1)
        if isinstance(arg, WeightArg | ScratchArg):
            arg = replace(arg, offset=ends[type(arg)])
            ends[type(arg)] += -(-arg.type.nbytes // ALIGN) * ALIGN
        elif isinstance(arg, RowsArg):
            arg = replace(arg, offset=ends[ScratchArg])
            ends[ScratchArg] += arg.room_nbytes
        placed.append(arg)
    if len(preparations) > 1 or (preparations and not ends[WeightArg]):
        raise ArtifactError("the program is malformed: a layer's weights are prepared twice, or there are none")
    preparation = next(iter(preparations), None)
    weights = Weights(weights_at, blocks, ends[WeightArg] // blocks, preparation) if ends[WeightArg] else None
    return tuple(placed), weights, ends[ScratchArg]


@lru_cache(256)
def _packer(fmt: str) -> Callable[..., bytes]:
    return struct.Struct("<" + fmt).pack


class _Writer:
    """Appends the primitives and records of the grammar."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, fmt: str, *values: int | float) -> None:
        self.data += _packer(fmt)(*values)

    def text(self, text: str) -> None:
        raw = text.encode()
        self.put("I", len(raw))
        self.data += raw

    def items(self, items, write) -> None:
        self.put("I", len(items))
        for item in items:
            write(item)

    def type(self, type: TensorType) -> None:
        self.put(f"BBHI{len(type.shape)}q", *_DTYPES[type.dtype], 1, len(type.shape), *type.shape)

    def state(self, state: State) -> None:
        self.text(state.input)
        self.text(state.output)
        self.put("IQI", state.value, state.offset, state.result)
        self.type(state.type)

    def layer(self, layer: Layer) -> None:
        for text in (layer.name, layer.op, layer.kernel, layer.implementation, layer.description):
            self.text(text)
        weights_at = layer.weights.offset if layer.weights else 0
        preparations = [layer.weights.preparation] if layer.weights and layer.weights.preparation else []
        if _laid_out(layer.args, weights_at, preparations) != (layer.args, layer.weights, layer.scratch_nbytes):
            raise ValueError(f"the weights or the scratch of layer {layer.name} do not follow each other")
        self.put("QQ", layer.flops, weights_at)
        self.items(layer.args, self.arg)
        self.items(preparations, lambda p: (self.text(p.kernel), self.type(p.stored), self.put("I", p.channels)))

    def arg(self, arg: Arg) -> None:
        match arg:
            case ValueArg() if arg.written or arg.exchanged:
                self.put("BIQ", _WRITTEN if arg.written else _EXCHANGED, arg.value, arg.offset)
                self.type(arg.type)
                self.put("Q", arg.touched_nbytes)
            case ValueArg():
                self.put("BIQ", _OVER if arg.over else _READ, arg.value, arg.offset)
                self.type(arg.type)
                self.items(arg.bounds, lambda bound: self.put("qq", *bound))
            case WeightArg():
                self.put("B", _WEIGHT)
                self.type(arg.type)
            case ScratchArg():
                self.put("B", _SCRATCH)
                self.type(arg.type)
            case RowsArg():
                self.put("BQQ", _INTERLEAVED if arg.interleaved else _ROWS, arg.table, arg.rows)
                self.type(arg.type)
                if arg.interleaved:
                    self.put("QI", arg.interleaved.block_nbytes, arg.interleaved.rows)
                    self.items(arg.interleaved.parts, lambda part: self.put("QIQ", part.at, part.nbytes, part.count))
            case FirstArg():
                self.put("B", _FIRST)
            case CountArg():
                self.put("B", _COUNT)
            case ValidArg():
                self.put("B", _VALID)
            case _:
                raise TypeError(f"unknown kernel argument {arg!r}")

    def rung(self, program: Program, rung: Rung, plan: bytes) -> None:
        self.put("QQQdQQ", rung.budget, rung.arena, rung.working, rung.seconds, *_weights_nbytes(program, rung))
        self.put("IIIIQI", *_counts(rung.steps, rung.tapes), len(plan), zlib.crc32(plan))

    def plan(self, rung: Rung) -> None:
        tapes = rung.tapes
        self.put(f"{len(rung.value_at)}q", *rung.value_at)
        self.items(rung.steps, self.step)
        self.items(tapes.first_steps, lambda one: (self.put("I", one[0]), self.step(one[1])))
        self.items(tapes.operations, self.operation)
        self.items(tapes.all, self.tape)

    def step(self, step: Step) -> None:
        self.put("IIIqq", step.layer, step.first, step.count, step.weights_at, step.scratch_at)

    def tape(self, tape: Tape) -> None:
        self.items(tape.runs, lambda run: self.put("IIi", *run))
        self.items(tape.need, lambda need: self.put("I", need))

    def operation(self, operation: Operation) -> None:
        if isinstance(operation, Prepare):
            self.put("BIIII", _PREPARE, operation.load, operation.layer, operation.first, operation.count)
            self.put("QQ", operation.source, operation.to)
            return
        places = operation.source, operation.nbytes, operation.to
        if any(place % PAGE for place in places):
            raise ValueError(f"load {operation.load} is not made of whole pages")
        kind = _COPY if isinstance(operation, Copy) else _EARLY if operation.early else _AT_ITS_TURN
        self.put("BIIII", kind, operation.load, *(place // PAGE for place in places))


class _Reader:
    """Takes the primitives and records of the grammar off `data`, from `at` on."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def get(self, fmt: str) -> tuple:
        values = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return values

    def text(self) -> str:
        (nbytes,) = self.get("I")
        return self.get(f"{nbytes}s")[0].decode()

    def items(self, read) -> tuple:
        return tuple(read() for _ in range(self.get("I")[0]))

    def type(self) -> TensorType:
        code, bits, lanes = self.get("BBH")
        if lanes != 1:
            raise ArtifactError("the program is malformed: vector element types are not supported")
        return TensorType(self.items(lambda: self.get("q")[0]), _DTYPE_NAMES[code, bits])

    def program(self, plans: bytes) -> tuple[Program, WeightsDigest]:
        model, target = printable(self.text()), self.text()
        features = self.items(self.text)
        (threads,) = self.get("I")
        metadata = dict(self.items(lambda: (self.text(), self.text())))
        _, header_nbytes, header_crc, data_nbytes = self.get("QQIQ")
        checksums = self.items(lambda: Checksum(*self.get("QQI")))
        spaces = self.items(self.text)
        if spaces not in ((HOST,), (CUDA,)):
            raise ArtifactError("the program uses memory spaces that this flexcomp does not know")
        values = self.items(lambda: Value(self.text(), self.get("QI")[0]))
        inputs, outputs = (self.items(lambda: Port(self.text(), self.get("I")[0], self.type())) for _ in range(2))
        states = self.items(self.state)
        layers = self.items(self.layer)
        of_plans = _Reader(plans, 0)
        said: list[tuple[int, int]] = []  # of each rung's weights
        rungs = self.items(lambda: self.rung(len(values), len(layers), of_plans, said))
        if left := self.left + of_plans.left:
            raise ArtifactError(f"the program is malformed: {left} bytes too many")
        program = Program(
            model, target, features, threads, values, inputs, outputs, layers, rungs, data_nbytes, metadata, states,
            *spaces,
        )  # fmt: skip
        for rung, nbytes in zip(rungs, said, strict=True):
            if _weights_nbytes(program, rung) != nbytes:
                words = f"the plan for {rung.budget} bytes has other weights than it is said to"
                raise ArtifactError(f"the program is malformed: {words}")
        try:
            digests = from_metadata(_stored(layers), metadata.pop(DIGESTS)) if DIGESTS in metadata else {}
        except ValueError as error:
            raise ArtifactError(f"the program is malformed: {error}") from None
        return program, WeightsDigest(header_nbytes, header_crc, data_nbytes, checksums, digests)

    def state(self) -> State:
        given, made, (value, offset, result) = self.text(), self.text(), self.get("IQI")
        return State(given, made, self.type(), value, offset, result)

    def layer(self) -> Layer:
        name, op, kernel, implementation, description = (self.text() for _ in range(5))
        name, op, implementation, description = map(printable, (name, op, implementation, description))
        flops, weights_at = self.get("QQ")
        args = self.items(self.arg)
        args, weights, scratch_nbytes = _laid_out(args, weights_at, self.items(self.preparation))
        return Layer(name, op, kernel, implementation, description, args, weights, scratch_nbytes, flops)

    def preparation(self) -> Preparation:
        return Preparation(self.text(), self.type(), *self.get("I"))

    def arg(self) -> Arg:
        (tag,) = self.get("B")
        if tag in (_READ, _OVER, _WRITTEN, _EXCHANGED):
            (value, offset), type_ = self.get("IQ"), self.type()
            if tag in (_WRITTEN, _EXCHANGED):
                part = self.get("Q")[0] / max(type_.nbytes, 1)
                return ValueArg(value, type_, tag == _WRITTEN, offset, part, exchanged=tag == _EXCHANGED)
            return ValueArg(value, type_, offset=offset, over=tag == _OVER, bounds=self.items(lambda: self.get("qq")))
        if tag in (_ROWS, _INTERLEAVED):
            (table, rows), type_ = self.get("QQ"), self.type()
            return RowsArg(0, type_, table, rows, self.interleaved() if tag == _INTERLEAVED else None)
        if tag in (_WEIGHT, _SCRATCH):
            return (WeightArg if tag == _WEIGHT else ScratchArg)(0, self.type())
        return {_FIRST: FirstArg, _COUNT: CountArg, _VALID: ValidArg}[tag]()

    def interleaved(self) -> Interleaved:
        block_nbytes, lanes = self.get("QI")
        if not lanes:
            raise ArtifactError("the program is malformed: there are no rows to fetch")
        return Interleaved(lanes, block_nbytes, tuple(self.items(lambda: Strided(*self.get("QIQ")))))

    def rung(self, values: int, layers: int, plans: _Reader, said: list[tuple[int, int]]) -> Rung:
        budget, arena, working, seconds, pinned, streamed, *counts, nbytes, crc = self.get("QQQdQQIIIIQI")
        said.append((pinned, streamed))
        if not 0 <= seconds < math.inf:
            raise ArtifactError(f"the plan for {budget} bytes is predicted to take {seconds} s")
        if nbytes > plans.left:
            raise ArtifactError(f"the program is malformed: the plan for {budget} bytes ends behind it")
        plan = _Reader(plans.get(f"{nbytes}s")[0], 0)
        if zlib.crc32(plan.data) != crc:
            raise ArtifactError(f"the program is damaged: the checksum of its plan for {budget} bytes differs")
        value_at, steps, tapes = plan.plan(values)
        if _counts(steps, tapes) != tuple(counts) or plan.left:
            raise ArtifactError(f"the program is malformed: the plan for {budget} bytes holds something else than it is said to")
        if not _complete(tapes, len(steps), layers):
            raise ArtifactError(f"the program is malformed: the plan for {budget} bytes has tapes that are of no use")
        return Rung(budget, arena, working, value_at, steps, tapes, seconds)

    def plan(self, values: int) -> tuple[tuple[int, ...], tuple[Step, ...], Tapes]:
        value_at, steps = self.get(f"{values}q"), self.items(self.step)
        first_steps = self.items(lambda: (self.get("I")[0], self.step()))
        operations = self.items(self.operation)
        tapes = self.items(lambda: self.tape(len(operations)))
        if len(tapes) != (5 if first_steps else 3):
            raise ArtifactError("the program is malformed: a plan has a wrong number of tapes")
        return value_at, steps, Tapes(operations, first_steps, *tapes)

    def step(self) -> Step:
        layer, first, count, weights_at, scratch_at = self.get("IIIqq")
        return Step(layer, first, count, weights_at, scratch_at)

    def operation(self) -> Operation:
        kind, load, *numbers = self.get("BIIII")
        if kind > _PREPARE:
            raise ArtifactError("the program holds an operation of a kind that this flexcomp does not know")
        if kind == _PREPARE:
            return Prepare(load, *numbers, *self.get("QQ"))
        source, nbytes, to = (PAGE * number for number in numbers)
        return Copy(load, source, nbytes, to) if kind == _COPY else Read(load, source, nbytes, to, kind == _EARLY)

    def tape(self, operations: int) -> Tape:
        runs = self.items(lambda: self.get("IIi"))
        if sum(count for _, count, _ in runs) > operations:
            raise ArtifactError("the program is malformed: a tape has more operations than there are")
        turns = tuple((at, after) for first, count, after in runs for at in range(first, first + count))
        return Tape(turns, self.items(lambda: self.get("I")[0]))

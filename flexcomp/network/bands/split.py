"""Layers in bands of rows: a run of layers is computed band by band, so that no tensor between them exists whole.

    x ──conv──> a ──conv──> b ──pool──> y            for every band of y's rows:
                                             →         x[rows] ──conv──> a' ──conv──> b' ──pool──> y[rows]

a' and b' are small values of their own, written anew for every band; x[rows] and y[rows] are parts of the whole
tensors, so nothing is copied. Rows that neighbouring bands both need are computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexcomp.program import ALIGN, TensorType, Value, ValueArg
from flexcomp.schedules.row_bands import RowKernel, Rows

from ..lowered import Lowered, align
from ..variants import Band
from .kernels import with_scratch_of


@dataclass(frozen=True)
class Region:
    """Layers [start, stop) of a network, computed in bands of `height` rows of the last layer's output."""

    start: int
    stop: int
    height: int

    def __str__(self) -> str:
        return f"layers {self.start} to {self.stop - 1} in bands of {self.height} rows"


@dataclass(frozen=True)
class _Link:
    """A layer of a chain and where its operands come from."""

    layer: int
    kernel: RowKernel
    begins: int  # position in the chain of the first layer that writes to this one's output: itself, or an earlier one
    sources: tuple[int | None, ...]  # per operand that position for its writer; None: written outside the chain
    in_row_nbytes: tuple[int, ...]  # per operand
    out_row_nbytes: int


class Chain:
    """Consecutive layers that can be computed in bands: only these read each other's results in between.

    Several may write parts of one tensor, a concatenation: they compute the same rows.

    Within a band a layer is computed just before its reader: a shortcut's rows come after the rows of the
    parallel branch.
    """

    def __init__(self, links: Sequence[_Link]) -> None:
        self.links = links = _in_order_of_need(links)
        readers = [[j for j, link in enumerate(links) if i in link.sources] for i in range(len(links))]
        # By the position at which a tensor begins.
        self.last_reader = tuple(max(found, default=len(links) - 1) for found in readers)

    @property
    def out_rows(self) -> int:
        """Rows of the chain's result."""
        return self.links[-1].kernel.out_rows

    def split(self, height: int) -> list[tuple[Rows, ...]] | None:
        """For every band of at most `height` rows of the result, the rows that each layer computes.

        None if that is not possible: parts of tensors must start at multiples of 64 bytes.
        """
        result = []
        for start in range(0, self.out_rows, height):
            rows = self._backwards(Rows(start, min(start + height, self.out_rows)))
            if rows is None:
                return None
            result.append(rows)
        return result

    def _backwards(self, out: Rows) -> tuple[Rows, ...] | None:
        wanted: dict[int, Rows] = {self.links[-1].begins: out}
        for link in reversed(self.links):
            for operand, source in enumerate(link.sources):
                needed = link.kernel.needed(wanted[link.begins], operand)
                if needed.count < 1:
                    return None
                if source is not None:
                    wanted[source] = wanted[source] | needed if source in wanted else needed
        rows = tuple(wanted[link.begins] for link in self.links)
        return rows if self._aligned(rows) else None

    def _aligned(self, rows: Sequence[Rows]) -> bool:
        if rows[-1].start * self.links[-1].out_row_nbytes % ALIGN:
            return False
        return all(
            self.offset(rows, position, operand) % ALIGN == 0
            for position, link in enumerate(self.links)
            for operand in range(len(link.sources))
        )

    def offset(self, rows: Sequence[Rows], position: int, operand: int) -> int:
        """The byte of an operand's value at which its rows start, if the layers compute `rows`."""
        link = self.links[position]
        source = link.sources[operand]
        first = link.kernel.needed(rows[position], operand).start
        return (first - (0 if source is None else rows[source].start)) * link.in_row_nbytes[operand]

    def inner_nbytes(self, rows: Sequence[Rows]) -> list[int]:
        """Bytes of the values between the layers that are live in each layer of a band."""
        sizes = [align(own.count * link.out_row_nbytes) for own, link in zip(rows, self.links, strict=True)]
        inner = {link.begins for link in self.links} - {self.links[-1].begins}
        return [
            sum(sizes[i] for i in inner if i <= position <= self.last_reader[i]) for position in range(len(sizes))
        ]


def _in_order_of_need(links: Sequence[_Link]) -> tuple[_Link, ...]:
    """The links from the last one backwards, depth first."""
    order: list[int] = []

    def visit(tensor: int) -> None:
        for position, link in enumerate(links):
            if link.begins == tensor:
                for source in link.sources:
                    if source is not None and source not in order:
                        visit(source)
                order.append(position)

    visit(links[-1].begins)
    moved = {position: i for i, position in enumerate(order)}
    return tuple(
        replace(
            links[position],
            begins=moved[links[position].begins],
            sources=tuple(None if s is None else moved[s] for s in links[position].sources),
        )
        for position in order
    )


def chain_of(lowered: Lowered, start: int, stop: int) -> Chain | None:
    """Layers [start, stop) as a chain; None if impossible."""
    ports = lowered.given | lowered.wanted
    writer: dict[int, int] = {}
    read: set[int] = set()
    links = []
    for index in range(start, stop):
        layer, kernel = lowered.layers[index], lowered.rows[index]
        values = [arg for arg in layer.args if isinstance(arg, ValueArg)]
        written = [arg for arg in values if arg.written]
        whole = all(_is_image(arg, lowered.values) for arg in values)
        if kernel is None or not whole or len(written) != 1 or kernel.bands.large:
            return None
        operands = [arg for arg in values if not arg.written]
        read.update(arg.value for arg in operands)
        links.append(
            _Link(
                index, kernel,
                writer.setdefault(written[0].value, index - start),
                tuple(writer.get(arg.value) for arg in operands),
                tuple(_row_nbytes(arg.type) for arg in operands),
                _row_nbytes(written[0].type),
            )
        )  # fmt: skip
    inner = [value for value, position in writer.items() if position != links[-1].begins]
    elsewhere = (*lowered.layers[:start], *lowered.layers[stop:])
    outside = {arg.value for layer in elsewhere for arg in layer.args if isinstance(arg, ValueArg)}
    if any(value in ports or value in outside or value not in read for value in inner):
        return None
    return Chain(links)


def _is_image(arg: ValueArg, values: Sequence[Value]) -> bool:
    """All of a value, as one image in NHWC."""
    whole = arg.offset == 0 and align(arg.type.nbytes) == values[arg.value].nbytes
    return whole and len(arg.type.shape) == 4 and arg.type.shape[0] == 1


def _row_nbytes(type_: TensorType) -> int:
    return type_.nbytes // type_.shape[1]


class BandBook:
    """The bands of a network in all the ways of splitting it: every value, kernel and layer once."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.values: list[Value] = []  # numbered after the network's own
        self.bands: list[Band] = []
        self.kernels: dict[str, RowKernel] = {}  # by symbol
        self._value_at: dict[Value, int] = {}
        self._band_at: dict[tuple, int] = {}
        self._symbols: dict[tuple[str, RowKernel], str] = {}
        self._names: dict[str, int] = {}

    def add(self, region: Region) -> list[int]:
        """The bands of a region, in the order of computing, as indices into `bands`."""
        chain = chain_of(self.lowered, region.start, region.stop)
        parts = chain.split(region.height) if chain else None
        assert parts is not None, f"{region} cannot be split"
        return [self._band(chain, rows, position) for rows in parts for position in range(len(rows))]

    def _band(self, chain: Chain, rows: Sequence[Rows], position: int) -> int:
        link = chain.links[position]
        base, own = self.lowered.layers[link.layer], rows[position]
        kernel = link.kernel.band(own)
        args, operand = [], 0
        for arg in base.args:
            if not isinstance(arg, ValueArg):
                args.append(arg)
            elif arg.written:
                last = link.begins == chain.links[-1].begins
                offset = own.start * link.out_row_nbytes if last else 0
                value = arg.value if last else self._inner(chain, rows, link.begins)
                args.append(ValueArg(value, _of_rows(arg.type, own), True, offset, arg.part))
            else:
                source = link.sources[operand]
                value = arg.value if source is None else self._inner(chain, rows, source)
                needed = link.kernel.needed(own, operand)
                args.append(ValueArg(value, _of_rows(arg.type, needed), False, chain.offset(rows, position, operand)))
                operand += 1
        args, scratch_nbytes = with_scratch_of(kernel, args)
        key = (link.layer, own, args)
        if key not in self._band_at:
            layer = replace(
                base,
                name=self._name(f"{base.name}{own}"),
                kernel=self._symbol(base.kernel, kernel),
                description=str(kernel.spec),
                args=args,
                scratch_nbytes=scratch_nbytes,
                flops=kernel.flops,
            )
            work = self.lowered.work[link.layer] * (kernel.flops / base.flops if base.flops else 0.0)
            self._band_at[key] = len(self.bands)
            self.bands.append(Band(link.layer, own, layer, work, link.layer))
        return self._band_at[key]

    def _inner(self, chain: Chain, rows: Sequence[Rows], position: int) -> int:
        """The value between layers that `position` writes for a band."""
        link, own = chain.links[position], rows[position]
        name = f"{self.lowered.layers[link.layer].name}{own}"
        value = Value(name, align(own.count * link.out_row_nbytes))
        if value not in self._value_at:
            self._value_at[value] = len(self.lowered.values) + len(self.values)
            self.values.append(value)
        return self._value_at[value]

    def _symbol(self, base: str, kernel: RowKernel) -> str:
        key = (base, kernel)
        if key not in self._symbols:
            self._symbols[key] = f"{base}_rows_{len(self._symbols)}"
            self.kernels[self._symbols[key]] = kernel
        return self._symbols[key]

    def _name(self, name: str) -> str:
        """`name`, or a similar one if taken: the same rows read from elsewhere."""
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name]}"


def _of_rows(type_: TensorType, rows: Rows) -> TensorType:
    one, _, *rest = type_.shape
    return TensorType((one, rows.count, *rest), type_.dtype)

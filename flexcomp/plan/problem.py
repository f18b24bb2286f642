"""Input and output of the planners. No TVM, no files: sizes, lifetimes and times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from typing import NamedTuple, TypeVar

import numpy as np

HUGE_PAGE = 2 << 20  # bytes; an arena begins with as many whole ones as it has room for, and the rest is in small pages
PAGE = 4096  # bytes; unit of loads: file ranges and arena targets of segments are multiples of PAGE
SLICE_S = 3e-6  # seconds of one more call and one more barrier, where nothing better is known
IN_CACHE = 0.2  # part of the disturbance that a load in the CPU's caches still causes: its source is memory, too
ALIGN = 64  # bytes; every buffer and scratch address is a multiple of ALIGN


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Buffer:
    """A place for one value, or for several that take turns, and the layers in which the place is in use, half-open."""

    name: str
    nbytes: int  # multiple of 64
    start: int  # first layer that needs the place (the layer that writes the buffer; 0 for inputs)
    end: int  # first layer that no longer needs the place (number of layers for outputs)
    stays: bool = False  # keeps its bytes for the next inference: in use in all layers and between, in whole pages

    def __post_init__(self) -> None:
        multiple = self.nbytes >= 0 and self.nbytes % ALIGN == 0
        _require(multiple, f"buffer {self.name}: {self.nbytes} bytes, not a multiple of {ALIGN}")
        _require(0 <= self.start < self.end, f"buffer {self.name}: empty lifetime [{self.start}, {self.end})")
        always = self.start == self.nbytes % PAGE == 0
        _require(always or not self.stays, f"buffer {self.name}: stays, but not from the start, or not in whole pages")

    @property
    def align(self) -> int:
        """Bytes; alignment of the address."""
        return PAGE if self.stays else ALIGN


@dataclass(frozen=True)
class Stored:
    """The source of prepared weights: blocks in the file. Each has as many output channels as the last axis of a panel."""

    offset: int  # bytes in the file's data section; multiple of 64
    block_nbytes: int
    channels: int  # of the layer, or of one group
    width: int  # channels of a stored block
    prepared: int  # of a prepared one

    def pages_of(self, first: int, count: int) -> tuple[int, int]:
        """(source, nbytes) of the pages of the data section from which `count` prepared blocks are made."""
        low, some = stored_blocks(self.channels, self.width, self.prepared, first, count)
        begin = self.offset + low * self.block_nbytes
        source = begin - begin % PAGE
        return source, -(-(begin + some * self.block_nbytes) // PAGE) * PAGE - source


def stored_blocks(channels: int, stored: int, prepared: int, first: int, count: int) -> tuple[int, int]:
    """(first, count) of the blocks of `stored` channels from which `count` blocks of `prepared` channels are made.

    The last block of either kind ends with the last channel.
    """
    begin = min(first * prepared, channels - prepared)
    end = min((first + count - 1) * prepared, channels - prepared) + prepared
    low = min(begin // stored, -(-channels // stored) - 1)
    return low, -(-end // stored) - low


@dataclass(frozen=True)
class Weights:
    """The weights of a layer: a byte range of the weights file in equal blocks, sliceable between blocks."""

    offset: int  # bytes in the file's data section, or in their own form; multiple of 64
    blocks: int
    block_nbytes: int
    # For weights that are prepared on loading, mostly from fewer bytes: bytes read and seconds of one core, per prepared
    # byte, and the source.
    read: float = 1.0
    prepare_s: float = 0.0
    stored: Stored | None = None
    form: int = 0  # that the bytes have: 0 for those of the file, otherwise a number for each preparation of each source

    def __post_init__(self) -> None:
        name = f"weights at {self.offset}, {self.blocks} blocks of {self.block_nbytes} bytes"
        _require(self.offset >= 0 and self.offset % ALIGN == 0, f"{name}: offset not a multiple of {ALIGN}")
        _require(self.blocks > 0 and self.block_nbytes > 0, f"{name}: nothing in them")
        _require(self.read >= 0 and self.prepare_s >= 0, f"{name}: loaded in less than no time")
        _require(not self.stored or self.prepare_s > 0, f"{name}: prepared in no time")
        sliceable = self.blocks == 1 or self.block_nbytes % ALIGN == 0
        _require(sliceable, f"{name}: block size not a multiple of {ALIGN}")

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.block_nbytes


@dataclass(frozen=True)
class Layer:
    """One fused call."""

    name: str
    scratch: int  # bytes, multiple of 64; live during each step of the layer
    weights: Weights | None
    seconds: float  # predicted compute time of the whole layer, everything resident
    slice_s: float = SLICE_S  # seconds that each further slice adds

    def __post_init__(self) -> None:
        multiple = self.scratch >= 0 and self.scratch % ALIGN == 0
        _require(multiple, f"layer {self.name}: scratch of {self.scratch} bytes, not a multiple of {ALIGN}")
        _require(self.seconds >= 0 and self.slice_s >= 0, f"layer {self.name}: takes {self.seconds} s")

    @property
    def blocks(self) -> int:
        """Blocks divided among the steps of the layer; 1 without weights."""
        return self.weights.blocks if self.weights else 1


@dataclass(frozen=True)
class Storage:
    """Where the weights come from."""

    bandwidth: float  # bytes per second, sequential
    overhead_s: float  # seconds per load, independent of its size
    wake_s: float = 0.0  # seconds until a step that waited for a load, or a load that waited for a step, begins
    disturbance: float = 0.0  # during loads of B bytes per second computing takes 1 + disturbance * B times as long
    cache: int = 0  # bytes; loads that come round within this size stay in the CPU's caches and disturb by IN_CACHE of that
    together: float = 1.0  # multiple of the bandwidth while computing waits for loads, and its core copies too
    latency_s: float = 0.0  # seconds until an idle device begins a request; a queued request begins at once
    cached: float = 1.0  # multiple of the bandwidth for loads that stay in the caches
    # Where every core computes and one of them also prepares weights, both take longer by this part of their time.
    core_contention: float = 0.0
    # How many times as long a byte takes that is read into small pages: devices are told of these one by one.
    small_pages: float = 1.0

    def __post_init__(self) -> None:
        costs = self.overhead_s, self.wake_s, self.disturbance, self.cache, self.latency_s, self.core_contention
        possible = self.bandwidth > 0 and min(costs) >= 0
        _require(possible, f"storage of {self.bandwidth} B/s, {self.overhead_s} s per load")
        _require(self.together >= 1, f"storage that is {self.together} times as fast while computing waits")
        _require(self.cached >= 1, f"storage that is {self.cached} times as fast with loads that stay in the caches")
        _require(self.small_pages >= 1, f"storage that takes {self.small_pages} times as long into small pages")

    @property
    def single_s(self) -> float:
        """Seconds that a load costs besides its bytes if the storage has nothing else to do."""
        return self.latency_s + self.overhead_s

    def load_cost(self, weights: Weights) -> float:
        """Seconds to load a byte of weights, relative to the seconds to read a byte.

        While one piece is prepared the next are read, unless reading is a copy by the same core. Pieces that are read share the
        device, so the first of them is late, and then their room is occupied until they are prepared: neither hides the other
        wholly. ResNet-152 and ViT-B/16 took 0.7 to 0.8 of the sum, where both take about as long.
        """
        preparing = self.prepare_s(weights) * self.bandwidth
        return weights.read + preparing if self.together > 1 else math.hypot(weights.read, preparing)

    def prepare_s(self, weights: Weights) -> float:
        """Seconds to prepare a byte of weights."""
        return weights.prepare_s * (1 + self.core_contention)

    def seconds(self, nbytes: int) -> float:
        """Time of one load of `nbytes`, from its beginning."""
        return self.overhead_s + nbytes / self.bandwidth

    def seconds_of(self, weights: Weights) -> float:
        """Time of loading all of a layer's weights at once."""
        return self.overhead_s + weights.nbytes * self.load_cost(weights) / self.bandwidth

    def least_seconds(self, reading: float, computing: float) -> float:
        """Time for `reading` seconds of reading by one core and, in parallel, `computing` seconds of computing."""
        return max(computing, min(reading, (reading + (self.together - 1) * computing) / self.together))

    def rates_at(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bandwidth, disturbance) of loads with these reuse distances in bytes (`reuse_distances`).

        Caches help in full up to their size, and no longer at one and a half times their size: by then the bytes
        have been evicted.
        """
        if not self.cache:
            return np.full(len(distances), self.bandwidth), np.full(len(distances), self.disturbance)
        beyond = np.clip(2 * (distances / self.cache - 1), 0.0, 1.0)
        bandwidth = self.bandwidth * (1 + (self.cached - 1) * (1 - beyond))
        return bandwidth, self.disturbance * np.maximum(IN_CACHE, beyond)

    @cached_property
    def in_cache(self) -> Storage:
        """The same storage when all loads stay in the caches."""
        (bandwidth,), (disturbance,) = self.rates_at(np.zeros(1))
        return replace(self, bandwidth=float(bandwidth), disturbance=float(disturbance), cache=0)


@dataclass(frozen=True)
class Value:
    """An activation in a buffer; values of one buffer are aliases of each other. Layers ascend."""

    name: str
    nbytes: int
    buffer: int  # index into Problem.buffers
    written: tuple[int, ...]  # layers that write the value or a part
    read: tuple[int, ...]  # layers that read the value
    given: bool = False  # there from the start: an input
    kept: bool = False  # needed at the end: an output
    over: tuple[int, ...] = ()  # values that this one may overwrite: the writing layer reads each element just before

    def life(self, layers: int) -> tuple[int, int]:
        """The layers that need its place, of `layers` in all, half-open."""
        touched = (*self.written, *self.read, *((0,) * self.given))
        return min(touched, default=0), layers if self.kept else max(touched, default=0) + 1


@dataclass(frozen=True)
class Problem:
    """A network to be planned: layers in the order of computing, and the buffers between them."""

    layers: tuple[Layer, ...]
    buffers: tuple[Buffer, ...]
    storage: Storage
    values: tuple[Value, ...] = field(default=(), compare=False)  # of the buffers, for the checker; planners need none

    def __post_init__(self) -> None:
        for buffer in self.buffers:
            _require(buffer.end <= len(self.layers), f"buffer {buffer.name}: lives beyond the last layer")
            always = buffer.end == len(self.layers)
            _require(always or not buffer.stays, f"buffer {buffer.name}: stays, but ends before the last layer")

    @cached_property
    def load_costs(self) -> tuple[float, ...]:
        """Per layer `Storage.load_cost` of its weights; 1 without weights."""
        return tuple(self.storage.load_cost(layer.weights) if layer.weights else 1.0 for layer in self.layers)

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """Per layer the number of layers with its weights: the same bytes, in the same blocks; 1 without weights."""
        count = Counter(layer.weights for layer in self.layers)
        return tuple(count[layer.weights] if layer.weights else 1 for layer in self.layers)

    @cached_property
    def shares(self) -> bool:
        """Whether some layers have the same weights."""
        return any(count > 1 for count in self.readers)

    @cached_property
    def keeps(self) -> bool:
        """Whether some layer's weights can be prepared from fewer stored bytes, which may stay in the arena."""
        return any(layer.weights and layer.weights.stored and layer.weights.read < 1 for layer in self.layers)

    def small_nbytes(self, segment: Segment, steps: Sequence[Step], arena: int) -> int:
        """Bytes of a segment that are read into small pages of an arena; those that are prepared are read to other places."""
        weights = self.layers[steps[segment.step].layer].weights
        if weights and weights.prepare_s:
            return 0
        return min(segment.nbytes, max(0, segment.address + segment.nbytes - arena // HUGE_PAGE * HUGE_PAGE))

    def load_cost_of(self, steps: Sequence[Step], first: int) -> float:
        """The load cost of a segment or a piece whose first step is `steps[first]`: all its bytes have one price."""
        return self.load_costs[steps[first].layer]

    def __hash__(self) -> int:
        """A cheap hash of a few fields: caches look problems up often, and problems are large."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((len(self.layers), len(self.buffers), sum(layer.seconds for layer in self.layers)))

    def __str__(self) -> str:
        weights = sum(layer.weights.nbytes for layer in self.layers if layer.weights)
        seconds = sum(layer.seconds for layer in self.layers)
        return (
            f"{len(self.layers)} layers, {weights:,} B of weights, {len(self.buffers)} buffers, "
            f"{seconds * 1e3:.1f} ms of computing"
        )


Result = TypeVar("Result")


def of_problem(function: Callable[[Problem], Result]) -> Callable[[Problem], Result]:
    """A function that is computed once for equal problems. A problem finds its own result without a comparison."""
    shared, name = lru_cache(maxsize=256)(function), f"{function.__module__}.{function.__name__}"

    @wraps(function)
    def found(problem: Problem) -> Result:
        own = problem.__dict__
        if name not in own:
            own[name] = shared(problem)
        return own[name]

    found.cache_clear = shared.cache_clear
    return found


class Step(NamedTuple):
    """Blocks [first, first + count) of a layer, or all. A layer without weights is one step of one block."""

    layer: int
    first: int
    count: int


class Segment(NamedTuple):
    """The load of the weights of one step, or of a few in a row: file and arena range, outward-aligned to pages.

    Later steps may use the segment again (`Plan.again`).
    """

    step: int  # the first step served
    source: int  # bytes in the data section, or in the weights' own form; multiple of 4096
    nbytes: int  # multiple of 4096
    address: int  # arena address; multiple of 4096
    after: int  # steps of the inference that must be computed before the load may start
    pinned: bool
    count: int = 1  # steps served, in a row
    ahead: bool = False  # `after` counts the steps of the previous inference; the first inference loads at its start
    # Arena address, a multiple of 4096, of the stored weights from which every inference prepares the segment. Stored weights
    # stay in the arena and are read in the first inference only. -1: read each time, or pinned.
    kept_at: int = -1
    form: int = 0  # of the weights (`Weights.form`)


def extent(ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes that ranges (address, nbytes) cover together."""
    covered = end = 0
    for address, nbytes in sorted(ranges):
        covered += max(0, address + nbytes - max(address, end))
        end = max(end, address + nbytes)
    return covered


@dataclass(frozen=True)
class Plan:
    """Addresses and load order for one budget."""

    strategy: str
    budget: int  # bytes
    arena: int  # bytes used; multiple of 4096; ≤ budget
    working: int  # bytes of the arena that inferences work in, below all that stays; multiple of 4096
    steps: tuple[Step, ...]
    buffer_at: tuple[int, ...]  # one address per buffer of the problem
    scratch_at: tuple[int, ...]  # one address per step; -1 without scratch
    segments: tuple[Segment, ...]  # in load order
    need: tuple[int, ...]  # per step: loads (from the start of `segments`) that must be complete
    # (step, load) of steps whose weights an earlier load has brought for another layer with the same weights; steps ascend
    again: tuple[tuple[int, int], ...] = ()
    # the search point that led to this plan, if the strategy records one: a start for another budget
    origin: object = field(default=None, compare=False, repr=False)

    @property
    def pinned_nbytes(self) -> int:
        """Bytes of ready-to-use weights that stay in the arena between inferences."""
        return sum(segment.nbytes for segment in self.segments if segment.pinned)

    @property
    def streamed_nbytes(self) -> int:
        """Bytes loaded from the file for every inference but the first, which also loads the weights that stay."""
        return sum(segment.nbytes for segment in self.segments if not segment.pinned and segment.kept_at < 0)

    def kept(self, problem: Problem, segment: Segment) -> tuple[int, int]:
        """(source, nbytes) of the pages of the data section from which a segment with a `kept_at` is prepared."""
        steps = self.steps[segment.step : segment.step + segment.count]
        weights = problem.layers[steps[0].layer].weights
        assert weights is not None and weights.stored is not None
        return weights.stored.pages_of(steps[0].first, sum(step.count for step in steps))

    def staying(self, problem: Problem) -> Iterator[tuple[int, int]]:
        """(address, nbytes) of all that stays in the arena between inferences, in whole pages."""
        yield from ((at, buffer.nbytes) for at, buffer in zip(self.buffer_at, problem.buffers, strict=True) if buffer.stays)
        stored: set[int] = set()  # stored weights of several layers are kept once
        for segment in self.segments:
            if segment.pinned:
                yield segment.address, segment.nbytes
            elif segment.kept_at >= 0 and segment.kept_at not in stored:
                stored.add(segment.kept_at)
                yield segment.kept_at, self.kept(problem, segment)[1]

    def worked_nbytes(self, problem: Problem) -> int:
        """The end of everything that does not stay."""
        buffers = (at + one.nbytes for at, one in zip(self.buffer_at, problem.buffers, strict=True) if not one.stays)
        scratch = (at + problem.layers[step.layer].scratch for step, at in zip(self.steps, self.scratch_at, strict=True))
        loaded = (segment.address + segment.nbytes for segment in self.segments if not segment.pinned)
        return max((*buffers, *scratch, *loaded), default=0)

    def __str__(self) -> str:
        return (
            f"{self.strategy}: budget {self.budget:,} B, arena {self.arena:,} B, {len(self.steps)} steps, "
            f"{self.pinned_nbytes:,} B pinned, {self.streamed_nbytes:,} B streamed"
        )


@dataclass(frozen=True)
class Minimum:
    """The smallest arena, and the layer that needs most at once, in bytes."""

    nbytes: int
    bound: int  # need of that layer at once; the rest of `nbytes` is lost to fragmentation
    layer: str
    activations: int
    weights: int  # of one block, the finest slice, in whole pages
    scratch: int

    @property
    def needs(self) -> dict[str, int]:
        """The needs of that layer, in bytes by name."""
        lost = self.nbytes - self.bound
        parts = {"activations": self.activations, "weights": self.weights, "scratch": self.scratch}
        return parts | ({"gaps between them": lost} if lost >= PAGE else {})

    def __str__(self) -> str:
        parts = ", ".join(f"{nbytes:,} B of {what}" for what, nbytes in self.needs.items())
        return f"the smallest feasible budget is {self.nbytes:,} B, set by layer {self.layer}: {parts}"

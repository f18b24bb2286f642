"""A kernel family: one object with all that is asked about kernels of one algorithm on one kind of machine.

`schedules/registry.py` lists the families. Whoever chooses, tunes, prices or reports kernels goes through that list, so a new
family is a folder and a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType

from tvm import tirx

from .row_bands import Bands, RowKernel
from .tiles.blocks import blocks_of
from .tiles.panel import Panel
from .tiles.spec import ConvSpec
from .tiles.tile import Tile, VectorUnit
from .transform import Transform

READING, COMPUTING = "reading", "computing"
# Groups in reports of speeds: of kernels that multiply alike, and of kernels without a common limit.
PRODUCTS, OTHER = "direct and matmul", "other"
# The layer on which families are probed that are limited by computing. On a Zen 4 core direct and Winograd kernels do as much
# work in a second here as on most other layers, in a network of either kind: at 28×28 pixels and 128 channels F(2) does 0.75 of
# that, and would make all other kernels look 15 % slower.
DEEP = ConvSpec(1, 14, 14, 256, 256, kernel=(3, 3), padding=(1, 1, 1, 1))


@dataclass(frozen=True)
class Candidate:
    """A kernel that can compute a layer."""

    family: str  # its name
    tile: Tile
    panel: Panel | None  # shape of the packed weights; None without weights
    scratch_nbytes: int
    work: float  # operations, weighted so that candidates of one layer compare: less is faster
    build: Callable[[], tirx.PrimFunc]
    variant: str = ""  # tells candidates of one family and tile apart
    transform: Transform | None = None  # of the weights: one of the family's `transform`
    scratch: tuple[tuple[int, ...], ...] = ()  # shapes of the kernel's trailing parameters, float32
    rows: RowKernel | None = None  # computes bands of rows, where possible
    panels: tuple[Panel, ...] = ()  # of a kernel that takes several, or one, whole
    told: Callable[[], tirx.PrimFunc] | None = None  # makes the kernel that takes, after y, the number of valid pixels
    reads: int | None = None  # how often a call reads all weights, one part of the output after the other; None: not counted
    together: int = 0  # pixels that are computed together, however few of them are valid; 0: those of the tile
    kind: str = ""  # of kernels of a family that take other times for their work than its others
    in_place: bool = False  # y may be a tensor of the epilogue: a result is written once, just after the same element is read

    @property
    def measured_as(self) -> str:
        """The name by which a machine's speed at such kernels is known."""
        return f"{self.family} {self.kind}".rstrip()

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(panel.blocks * panel.block_nbytes for panel in (self.panel, *self.panels) if panel)

    def for_lengths(self, fewest: int, all_: int) -> Candidate:
        """The candidate with the mean work for `fewest` to `all_` pixels, of a layer that has all."""
        step = self.together or self.tile.rows

        def up_to(most: int) -> int:
            """The steps of all numbers of pixels up to one, together."""
            whole, rest = divmod(most, step)
            return step * whole * (whole + 1) // 2 + rest * (whole + 1)

        lengths, last = all_ + 1 - fewest, all_ % step
        beyond = min(last, lengths) * (step - last)  # the last step is a smaller one
        computed = step * (up_to(all_) - up_to(fewest - 1)) - beyond
        return replace(self, work=self.work * computed / (all_ * lengths))

    @property
    def size(self) -> tuple:
        """Orders candidates by memory."""
        return (self.scratch_nbytes, self.weight_nbytes, self.work)

    def __str__(self) -> str:
        tile = "" if self.panels else str(self.tile)  # which the variant tells
        return " ".join(part for part in (self.family, self.variant, tile) if part)


@dataclass(frozen=True, eq=False)
class Family:
    """Kernels of one algorithm on one kind of machine."""

    name: str  # the first word of its kernels' names
    takes: type  # the class of specs of its layers
    candidates: Callable[..., Iterable[Candidate]]  # (spec, machine): the best by a model of the machine; none if not able
    trials: Callable[..., Iterable[Candidate]] = lambda spec, machine: ()  # likewise: others that a tuner may measure
    machine: type = VectorUnit
    in_blocks: bool = False  # its kernels are for weights in blocks of inputs, which no others read
    dtypes: tuple[str, ...] = ("float32",)  # of activations that its kernels compute in
    # Kernels of different arithmetic take weights in forms that cannot be made of each other: a layer has those of the fastest.
    arithmetic: str = "float32"
    anew: bool = False  # loops over rows of results fill all scratch anew in each iteration
    bands: Bands | None = None  # makes kernels for bands of rows
    transform: type | None = None  # computes its kernels' weights from a layer's: a class as `transform.py` says
    # Kernels take at most this part of the time of those whose weights have another form with fewer bytes; None: any time.
    worth_weights: float | None = None
    group: str = ""  # in reports of speeds; none: the family's own
    bound_by: str = COMPUTING  # the limit of its kernels' speed
    # Operations for each byte of input, which a kernel combines or copies before multiplying, in every call. Medians on one Zen 4
    # core, layers of VGG-19, ResNet-152 and ViT-B/16 called in two to eight slices.
    preparing_flops: float = 0.0
    preferred: Callable[[Candidate], object] | None = None  # the order in which a build takes its kernels that prefers the family
    # Layers and kernels, one of each kind, by which a build for its own machine measures how fast such kernels are there.
    probe: Callable[[VectorUnit], Iterable[tuple[ConvSpec, Candidate]]] | None = None

    def is_for(self, spec: object, machine: object) -> bool:
        """Whether layers of that kind are among its own, on that kind of machine."""
        in_blocks = isinstance(spec, ConvSpec) and blocks_of(spec.weights) is not None
        return isinstance(spec, self.takes) and isinstance(machine, self.machine) and self.in_blocks == in_blocks

    def worthwhile(self, offers: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Those candidates for a layer that are worth their weights."""
        offers, part = tuple(offers), self.worth_weights
        if part is None:
            return offers

        def is_better(one: Candidate, than: Candidate) -> bool:
            is_smaller = one.transform != than.transform and one.weight_nbytes < than.weight_nbytes
            return is_smaller and part * one.work <= than.work

        return tuple(each for each in offers if not any(is_better(one, each) for one in offers))


def of_way(family: str, kernels: ModuleType, way, unit: VectorUnit, **more: object) -> Candidate:
    """The candidate of a family whose description of a kernel, `way`, has tile, panel, scratch, work and a name."""
    return Candidate(
        family,
        way.tile,
        way.panel,
        way.scratch_nbytes,
        way.work,
        lambda: kernels.kernel(way, unit.width),
        variant=str(way),
        scratch=way.scratch,
        reads=way.reads,
        **more,
    )

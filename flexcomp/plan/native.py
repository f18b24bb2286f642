"""The planner's inner loops in C++ (`runtime_ext/planner`), called through ctypes; `loops.py` decides when."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_void_p
from dataclasses import asdict, fields
from functools import cache
from itertools import accumulate, chain, islice
from math import inf
from operator import attrgetter
from typing import Protocol

import numpy as np

from .. import runtime_ext
from .errors import PlanError
from .problem import IN_CACHE, Layer, Plan, Problem, Segment, Step, Storage, Stored

_Occupied = Sequence[Sequence[tuple[int, int]]]  # per layer (address, nbytes), by address: Layout.occupied


class _Layout(Protocol):
    """The part of parts.layout.Layout used here; that module imports the loops."""

    occupied: _Occupied
    top: int


_UNPLACEABLE, _STUCK, _OUT_OF_MEMORY = 1, 2, 3  # as in runtime_ext/planner/c_api.cc


class _Storage(ctypes.Structure):
    _fields_ = (
        *((name, c_double) for name in ("bandwidth", "overhead_s", "wake_s", "disturbance")),
        *((name, c_double) for name in ("together", "latency_s", "cached", "core_contention", "small_pages")),
        ("cache", c_int64),
        ("in_cache", c_double),
        ("same_s", c_double),
        ("most_laps", c_int64),
    )


class _Choice(ctypes.Structure):
    """A point of the search: numbers for names, pages, and bytes up to which segments are joined."""

    _fields_ = tuple(
        (name, c_int64)
        for name in ("arena", "core", "segments_at_once", "pins", "joined", "chooser", "within", "stored")
    )


class Coordinates(ctypes.Structure):
    """A choice of the search: the fields of `search.descent.Choice`, with numbers for names."""

    _fields_ = tuple(
        (name, c_double if name == "share" else c_int64)
        for name in ("layout", "share", "segments_at_once", "pins", "joined", "chooser", "within", "stored")
    )

    @property
    def row(self) -> tuple[int | float, ...]:
        """The fields in order."""
        return tuple(getattr(self, name) for name, _ in self._fields_)


class _Cost(ctypes.Structure):
    _fields_ = (("latency", c_double), ("nbytes", c_int64), ("arena", c_int64))


class _Rules(ctypes.Structure):
    _fields_ = (
        ("arena", c_int64),
        *((name, c_double) for name in ("effort", "step_effort", "limit", "enough", "no_slower", "joined_s")),
        *((name, c_int64) for name in ("keeps", "pins", "choosers", "starts", "rounds")),
        ("usual", Coordinates),
    )


class Result(ctypes.Structure):
    """Of a plan: seconds, bytes to load, bytes of memory, steps before pinned neighbours were merged, and numbers of rows."""

    _fields_ = (("latency", c_double), *((name, c_int64) for name in ("nbytes", "arena", "effort", "steps", "segments", "again")))


class _Waits(ctypes.Structure):
    _fields_ = (("step", c_int64), ("after", c_int64))


class _CutRates(ctypes.Structure):
    _fields_ = tuple((name, c_double) for name in ("bandwidth", "helped", "delay", "budget"))


class _Descent(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rounds", "starts", "singles")),
        *((name, c_double) for name in ("least", "better")),
    )


class _Softness(ctypes.Structure):
    _fields_ = (("squarings", c_int64), ("negligible", c_double))


_SHORT = ("New", "Free", "AddLayout", "Plan", "Latency", "SearchNew", "SearchFree", "LargestCut", "RecordsNew", "RecordsFree")


@cache
def _library() -> ctypes.CDLL:
    path = str(runtime_ext.planner())
    # Calls of a few microseconds keep Python's lock: to take it again takes longer where several threads plan.
    library, keeping = ctypes.CDLL(path), ctypes.PyDLL(path)
    for name, result, *arguments in (
        ("New", c_int32, c_int64, c_void_p, c_void_p, POINTER(_Storage), POINTER(c_void_p)),
        ("Free", None, c_void_p),
        ("AddLayout", c_int32, c_void_p, c_void_p, c_void_p, c_int64),
        ("Try", c_int32, c_void_p, c_int64, POINTER(_Choice), c_double, POINTER(Result)),
        ("Plan", None, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        ("Latency", c_int32, c_void_p, *[c_int64, c_void_p] * 2, c_void_p, c_int64, POINTER(c_double), POINTER(_Waits)),
        ("SearchNew", c_int32, c_void_p, POINTER(_Rules), c_void_p, c_void_p, c_int64, c_void_p, POINTER(c_void_p)),
        ("SearchFree", None, c_void_p),
        ("Begin", c_int32, c_void_p, c_int64, *[POINTER(Coordinates)] * 2, POINTER(_Cost), POINTER(c_double)),
        ("Descend", c_int32, c_void_p, c_int64, POINTER(Coordinates), c_int64, POINTER(Coordinates), POINTER(c_double)),
        ("Cuts", None, c_int64, c_void_p, c_void_p, c_void_p, POINTER(_CutRates), c_void_p),
        ("LargestCut", c_int32, c_int64, *[c_void_p] * 3, c_double, c_double, POINTER(_CutRates), POINTER(c_double)),
        ("Mix", c_int32, c_int64, c_int64, *[c_void_p] * 4, POINTER(_CutRates), POINTER(_Descent), c_int64, c_void_p, c_void_p),
        ("RecordsNew", c_int32, c_int64, c_void_p, c_void_p, c_void_p, POINTER(c_void_p)),
        ("RecordsFree", None, c_void_p),
        ("FlexNn", c_int32, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, POINTER(c_int64)),
        ("Partition", c_int32, c_int64, c_void_p, c_void_p, c_double, c_double, c_int64, c_void_p, POINTER(c_int64)),
        ("Place", c_int32, c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)),
    ):
        symbol = f"FlexcompPlanner{name}"
        function = getattr(keeping if name in _SHORT else library, symbol)
        function.restype, function.argtypes = result, arguments
        setattr(library, symbol, function)
    return library


_STORED_ROW = attrgetter(*(field.name for field in fields(Stored)))


class NativeProblem:
    """A problem in C++, and layouts to plan in."""

    def __init__(self, problem: Problem, same_s: float, most_laps: int) -> None:
        """`same_s` and `most_laps` are the simulator's."""
        storage = _Storage(**asdict(problem.storage), in_cache=IN_CACHE, same_s=same_s, most_laps=most_laps)
        layers = zip(problem.layers, problem.load_costs, strict=True)
        rows = ((layer.seconds, layer.slice_s, cost, _prepare_s(problem, layer)) for layer, cost in layers)
        times = array("d", chain.from_iterable(rows))
        weights = array("q", chain.from_iterable(_weights_row(layer) for layer in problem.layers))
        self._layouts: dict[int, tuple[int, object]] = {}  # by id: number and layout, which must live as long as its id is used
        self.handle = c_void_p()
        _call("New", len(problem.layers), _address(times), _address(weights), byref(storage), byref(self.handle))
        weakref.finalize(self, _library().FlexcompPlannerFree, self.handle)

    def number_of(self, layout: _Layout) -> int:
        """The number of a layout in the loops."""
        if id(layout) not in self._layouts:
            ends, intervals = _intervals(layout.occupied)
            _call("AddLayout", self.handle, _address(ends), _address(intervals), layout.top)
            self._layouts[id(layout)] = len(self._layouts), layout
        return self._layouts[id(layout)][0]

    def attempt(self, layout: int, limit: float, *choice: int) -> Result | None:
        """Make the plan of a point of the search, by the fields of `_Choice`; None if something finds no place.

        If a lower bound exceeds `limit` seconds, no plan is made: the bound is the latency, and the arena is 0.
        """
        result = Result()
        code = _call("Try", self.handle, layout, byref(_Choice(*choice)), limit, byref(result))
        assert code != _STUCK, "a plan of the search waits for itself"
        return None if code == _UNPLACEABLE else result

    def plan(
        self, layout: int, *choice: int
    ) -> tuple[Result, tuple[Step, ...], tuple[Segment, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
        """As `attempt`, with the steps, segments, needs and repeated uses of a plan that can be made."""
        result = self.attempt(layout, inf, *choice)
        assert result is not None
        steps, need = array("q", bytes(24 * result.steps)), array("q", bytes(8 * result.steps))
        segments, again = array("q", bytes(80 * result.segments)), array("q", bytes(16 * result.again))
        _library().FlexcompPlannerPlan(self.handle, *map(_address, (steps, segments, need, again)))
        return (
            result,
            tuple(map(Step._make, _rows(steps, 3))),
            tuple(
                Segment(step, source, nbytes, address, after, bool(pinned), count, bool(ahead), kept_at, form)
                for step, source, nbytes, address, after, pinned, count, ahead, kept_at, form in _rows(segments, 10)
            ),
            tuple(need),
            tuple(_rows(again, 2)),
        )

    def latency(self, plan: Plan) -> float:
        """As `simulate`. Raises PlanError if the waits can never end."""
        rows, latency, waits = plan.__dict__.get("_rows"), c_double(), _Waits()
        if rows is None:  # a plan is asked for on predicted and on faster computing, more than once
            steps = array("q", chain.from_iterable(plan.steps))
            segments = array("q", chain.from_iterable(plan.segments))
            rows = plan.__dict__["_rows"] = steps, segments, array("q", plan.need)
        steps, segments, need = map(_address, rows)
        sizes = len(plan.steps), steps, len(plan.segments), segments, need
        if _call("Latency", self.handle, *sizes, plan.arena, byref(latency), byref(waits)) == _STUCK:
            raise PlanError(f"step {waits.step} waits for a load that waits for {waits.after} steps")
        return latency.value


class NativeSearch:
    """A search for plans of one budget in C++: see `search.descent`. `spent` are the steps planned so far."""

    def __init__(
        self, problem: NativeProblem, lines: Sequence[Sequence[int]], shares: Sequence[float], usual: Coordinates, **rules: float
    ) -> None:
        """`lines` are the values of coordinates, as `SearchNew` takes them, and `rules` the other fields of `_Rules`."""
        self.spent = 0.0
        self._problem, self._handle = problem, c_void_p()  # C++ refers to the problem
        counts, values = array("q", map(len, lines)), array("q", chain.from_iterable(lines))
        cores, rules_of = array("d", shares), _Rules(usual=usual, **rules)
        places = byref(rules_of), _address(counts), _address(values), len(cores), _address(cores)
        _call("SearchNew", problem.handle, *places, byref(self._handle))
        weakref.finalize(self, _library().FlexcompPlannerSearchFree, self._handle)

    def begin(self, choices: Sequence[tuple[int | float, ...]]) -> tuple[tuple[int | float, ...], tuple[float, int, int]]:
        """The row of the best of these choices, and its cost."""
        found, cost, spent = Coordinates(), _Cost(), c_double()
        _searched("Begin", self._handle, len(choices), _choices(choices), byref(found), byref(cost), byref(spent))
        self.spent = spent.value
        return found.row, (cost.latency, cost.nbytes, cost.arena)

    def descend(self, starts: Sequence[tuple[int | float, ...]], pin_more: int = -1) -> tuple[int | float, ...]:
        """The row of the choice of `gridded`; without `pin_more`, of `descended` from the only start."""
        found, spent = Coordinates(), c_double()
        _searched("Descend", self._handle, len(starts), _choices(starts), pin_more, byref(found), byref(spent))
        self.spent = spent.value
        return found.row


def _choices(rows: Sequence[tuple[int | float, ...]]) -> ctypes.Array:
    return (Coordinates * max(1, len(rows)))(*rows)


def _searched(name: str, *arguments: object) -> None:
    assert _call(name, *arguments) != _STUCK, "a plan of the search waits for itself"


class NativeRecords:
    """Tensor usage records in C++, and which of them meet."""

    def __init__(self, sizes: Iterable[tuple[int, int]], neighbours: Sequence[Sequence[int]]) -> None:
        """`sizes` are (nbytes, align), `neighbours` indices, both per record."""
        self._count, self._handle = len(neighbours), c_void_p()
        rows, met = array("q", chain.from_iterable(sizes)), array("q", chain.from_iterable(neighbours))
        ends = array("q", accumulate(map(len, neighbours), initial=0))
        _call("RecordsNew", self._count, _address(rows), _address(ends), _address(met), byref(self._handle))
        weakref.finalize(self, _library().FlexcompPlannerRecordsFree, self._handle)

    def place(self, order: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """The offsets of `place_in_order`, and the bytes used in all."""
        turns, offsets, total = array("q", order), array("q", bytes(8 * self._count)), c_int64()
        _call("Place", self._handle, len(turns), _address(turns), _address(offsets), byref(total))
        return tuple(offsets), total.value


def place_steps(
    occupied: _Occupied, arena: int, layers: Sequence[int], weights: Sequence[int], scratch: Sequence[int]
) -> list[tuple[int, int, int]]:
    """See `published.flexnn`."""
    (ends, intervals), count = _intervals(occupied), len(layers)
    rows, places, failed = array("q", (*layers, *weights, *scratch)), array("q", bytes(24 * count)), c_int64()
    sizes = len(occupied), _address(ends), _address(intervals), arena, count
    _call("FlexNn", *sizes, _address(rows), _address(places), byref(failed))
    found = zip(places[:count], places[count : 2 * count], places[2 * count :], strict=True)
    return list(islice(found, count if failed.value < 0 else failed.value))


def block_starts(at: np.ndarray, seconds: np.ndarray, storage: Storage, room: int) -> list[int]:
    """See `published.swapnet`; of int64 bytes and float64 seconds."""
    starts, count = array("q", bytes(8 * len(at))), c_int64()
    rates = storage.single_s, storage.bandwidth
    _call("Partition", len(at) - 1, at.ctypes.data, seconds.ctypes.data, *rates, room, _address(starts), byref(count))
    return list(starts[: count.value])


def cut_values(seconds: np.ndarray, nbytes: np.ndarray, held: np.ndarray, **rates: float) -> np.ndarray:
    """`Cuts.values` of float64 sums up to each layer of two inferences; by the fields of `_CutRates`."""
    values = np.empty((len(held), len(held) + 1))
    seconds_at, nbytes_at, held_at, values_at = (one.ctypes.data for one in (seconds, nbytes, held, values))
    _call("Cuts", len(held), seconds_at, nbytes_at, held_at, byref(_CutRates(**rates)), values_at)
    return values


class LargestCut:
    """The largest of `cut_values`, by budget: the loads and layers stay the same."""

    def __init__(
        self, seconds_upto: np.ndarray, nbytes_upto: np.ndarray, live: np.ndarray, dearest: float, rates: dict[str, float]
    ) -> None:
        """`live` and `dearest` are those of `Cuts`, float64 arrays the sums of `cut_values`."""
        self._arrays = seconds_upto, nbytes_upto, live
        self._rates = _CutRates(**rates)
        self._fixed = len(live), *(one.ctypes.data for one in self._arrays), dearest

    def at(self, budget: int) -> float:
        """Seconds, for a budget in bytes."""
        largest = c_double()
        _call("LargestCut", *self._fixed, budget, byref(self._rates), byref(largest))
        return largest.value


def mix_kernels(
    seconds: np.ndarray,
    nbytes: np.ndarray,
    allowed: np.ndarray,
    held: np.ndarray,
    rates: dict[str, float],
    softness: Sequence[tuple[int, float]],
    **descent: float,
) -> list[int]:
    """See `mixture.mix`; of arrays [layers, options]: two of float64 and one of bools; by the fields of `_Descent`."""
    rows, picks = (_Softness * len(softness))(*softness), array("q", bytes(8 * len(held)))
    arrays = (one.ctypes.data for one in (seconds, nbytes, allowed, held))
    sizes = byref(_CutRates(**rates)), byref(_Descent(**descent)), len(softness)
    _call("Mix", *seconds.shape, *arrays, *sizes, ctypes.addressof(rows), _address(picks))
    return list(picks)


def _call(name: str, *arguments: object) -> int | None:
    code = getattr(_library(), f"FlexcompPlanner{name}")(*arguments)
    if code == _OUT_OF_MEMORY:
        raise MemoryError
    return code


def _intervals(occupied: _Occupied) -> tuple[array, array]:
    """Where each layer's rows of (address, nbytes) begin and the last row ends, and the rows."""
    ends = array("q", accumulate(map(len, occupied), initial=0))
    return ends, array("q", chain.from_iterable(chain.from_iterable(occupied)))


def _address(numbers: array) -> int:
    return numbers.buffer_info()[0]


def _rows(numbers: array, width: int) -> Iterator[tuple[int, ...]]:
    return zip(*[iter(numbers)] * width, strict=True)


def _weights_row(layer: Layer) -> tuple[int, ...]:
    weights = layer.weights
    own = (weights.offset, weights.blocks, weights.block_nbytes, weights.form) if weights else (0, 0, 0, 0)
    return (*own, *(_STORED_ROW(weights.stored) if weights and weights.stored else (0, 0, 0, 0, 0)))


def _prepare_s(problem: Problem, layer: Layer) -> float:
    return problem.storage.prepare_s(layer.weights) if layer.weights else 0.0

"""Several models under one budget (`runtime_ext/pool/pool.h`)."""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.arguments import checked_milliseconds, checked_name, checked_number, checked_path, checked_text
from flexcomp.errors import BudgetError, ExecutionError, InputError
from flexcomp.renamed import Renamed, milliseconds, renamed

from .budget import Budget, parse_budget
from .fitting import Fitting
from .library import function, load_program, translated
from .load_options import options_of
from .pool_plan import PooledModel, PoolPlan, PoolStep
from .pool_requests import Collector, ModelGoneError, PoolFuture, accepted
from .ports import TensorInfo, given_inputs, named_outputs
from .sharing import SHARING

if TYPE_CHECKING:
    from .watch import Watch

_Asked = TypeVar("_Asked")
LATE = ("refuse", "run")
_CREATE = "flexcomp.pool.1.create"  # of the runtime; the number is that of its JSON
_STEP = 1.25  # between the budgets that a watch tries


@dataclass(frozen=True)
class _Member:
    """A model of the runtime, whose number no other has."""

    number: int
    fitting: Fitting

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.fitting.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.fitting.outputs


class Pool:
    """Several models that take turns in one budget. Any thread may call.

    `budget`: bytes, "64MB" or "64MiB", for all models together.
    `lanes`: inferences that run at a time, each on cores of its own. Models of one lane work in the same memory, so only the
    memory that they keep between inferences adds up.
    `threads`: compute threads of each lane; None: one for each core of the lane.
    `queue`: requests that may wait for a model.
    `sharing`: "exact" chooses each model's plan so that the sum of rate · urgency · latency is least, anew when the budget, the
    models or their rates change. "swapnet" shares by SwapNet's rule, for comparison.
    """

    @renamed(strategy="sharing")
    def __init__(
        self,
        budget: int | str | Budget,
        lanes: int = 1,
        threads: int | None = None,
        *,
        queue: int = 64,
        sharing: str = "exact",
    ) -> None:
        options = {
            "strategy": checked_name(sharing, SHARING, "sharing"),
            "budget_bytes": pool_bytes(budget),
            "lanes": checked_number(lanes, "lanes", least=1),
            "threads": None if threads is None else checked_number(threads, "threads", least=1),
            "queue": checked_number(queue, "queue", least=1),
        }
        self.closed = False
        self._process = os.getpid()
        self._units = parse_budget(budget).units  # of requests and answers
        self._members: dict[str, _Member] = {}  # models as the runtime described them: there may be others by now
        with translated():
            self._pool = runtime_ext.function(_CREATE)(json.dumps(options))
        self._submit, self._run = function(self._pool, "submit"), function(self._pool, "run")
        self._collector = Collector(self._pool)
        # Also before the interpreter ends, when threads can no longer return to Python.
        self._closing = weakref.finalize(self, _end, self._pool, self._collector, self._process)
        self._collector.start()

    def __repr__(self) -> str:
        names = "another process" if os.getpid() != self._process else ", ".join(self.models) or "no models"
        return f"<Pool of {names}{', closed' if self.closed else ''}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("a pool cannot be pickled or copied: another process makes one of its own")

    def add(
        self,
        name: str,
        path: str | os.PathLike[str],
        urgency: float = 1.0,
        rate: float | None = None,
        deadline_ms: float | None = None,
        keep: int | str = "auto",
        *,
        weights: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        """Open the compiled network in `path` under `name`.

        `urgency`: the cost of a second of latency, relative to other models.
        `rate`: requests per second; None: the pool counts requests.
        `deadline_ms`: for requests without a deadline of their own. Shares are made to meet this deadline.
        `keep`: bytes that the model may keep between inferences; "auto": as many as its share gives.
        `weights` and `options`: as for `flexcomp.load`. A library that is added twice with the same options is held once, unless
        the network keeps state.

        Raises BudgetError if the budget is too small for one more model, ArtifactError, TargetError, InputError; then nothing has
        changed.
        """
        session = options_of(options).to_json()
        name = checked_text(name, "the model's name")
        if not name.isprintable():  # tables, logs and metrics have a line for each
            raise InputError(f"the model's name must be printable, not {name!r}")
        model = {
            "urgency": _positive(urgency, "urgency"),
            "rate": None if rate is None else _positive(rate, "rate"),
            "deadline_ms": None if deadline_ms is None else _positive(deadline_ms, "deadline_ms"),
            "keep_bytes": None if keep == "auto" else 0 if keep == 0 else pool_bytes(keep),
        }
        path = checked_path(path, "the library").resolve()
        program, library = load_program(path)
        found = path.with_suffix(".weights") if weights is None else checked_path(weights, "weights").resolve()
        self._require_this_process()
        with translated():
            function(self._pool, "add")(name, json.dumps(model), program, library, str(found), session)

    def remove(self, name: str) -> None:
        """Close a model. A running inference ends; waiting requests fail."""
        self._described(name)
        with translated():
            function(self._pool, "remove")(name)
        self._members.pop(name, None)

    def run(
        self, name: str, inputs: Mapping[str, Any], *, deadline_ms: float | None = None, late: str = "refuse"
    ) -> dict[str, np.ndarray]:
        """One inference of the model `name`, in its turn. Returns the outputs by name.

        A request that would miss its deadline, or make another request miss one, is refused; `late="run"` runs the request all
        the same. A request whose deadline passes before its turn is dropped. `deadline_ms` counts from now.

        Raises RefusedError, InputError, StorageError, ExecutionError.
        """
        options = _request(deadline_ms, late)

        def ask(member: _Member) -> dict[str, np.ndarray]:
            tensors, results = self._tensors(member, inputs)
            with translated():
                accepted(self._run(member.number, options, *tensors))
            return named_outputs(member.outputs, results)

        return self._of_member(name, ask)

    def submit(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        deadline_ms: float | None = None,
        late: str = "refuse",
        here: bool = False,
    ) -> PoolFuture:
        """As `run`, without waiting: the future has the outputs, or the error. Raises RefusedError at once.

        Inputs are read when the request runs, and must not change before the future is done. `here=True` runs the request in this
        call, if the pool has one lane, nothing runs or waits, and earlier inferences of the model took at most 2 ms.
        """
        self._require_this_process()
        options = _request(deadline_ms, late, collected=True, here=bool(here))

        def ask(member: _Member) -> PoolFuture:
            tensors, results = self._tensors(member, inputs)

            def submit(ticket: int) -> int | str:
                with translated():
                    return self._submit(ticket, member.number, options, *tensors)

            return self._collector.begin(submit, member.outputs, results)

        return self._of_member(name, ask)

    def set_budget(self, budget: int | str | Budget) -> PoolPlan:
        """Share another budget. When this returns, no more memory is held; inferences that gave memory back begin anew.

        Raises BudgetError, with the smallest budget for these models, and changes nothing.
        """
        with translated():
            function(self._pool, "set_budget")(pool_bytes(budget))
        self._units = parse_budget(budget).units
        return self.plan()

    @renamed(interval_s=Renamed("interval_ms", milliseconds), patience_s=Renamed("patience_ms", milliseconds))
    def watch(
        self,
        source: str | os.PathLike[str] | Callable[[], int | None],
        *,
        interval_ms: float = 200,
        patience_ms: float = 2000,
        most: int | str | Budget | None = None,
    ) -> Watch:
        """Let the budget follow `source`, as `Session.watch` does, in steps of a quarter between the smallest and the largest.

        The budget never exceeds `most`, by default the size at which everything is resident.
        """
        from .watch import Watch, source_of

        interval_s = checked_milliseconds(interval_ms, "interval_ms") / 1e3
        patience_s = checked_milliseconds(patience_ms, "patience_ms") / 1e3
        return Watch(self, source_of(source), interval_s, patience_s, None if most is None else pool_bytes(most))

    @property
    def ladder(self) -> tuple[PoolStep, ...]:
        """Budgets for these models, a quarter apart; none without models."""
        plan = self._plan()
        if not plan["models"]:
            return ()
        least, most = max(plan["least_bytes"], 1), plan["most_bytes"]
        steps = math.ceil(math.log(max(most / least, 1), _STEP))
        return (*(PoolStep(math.ceil(least * _STEP**i)) for i in range(steps)), PoolStep(max(least, most)))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        with translated():
            return tuple(json.loads(function(self._pool, "names")()))

    def inputs(self, name: str) -> tuple[TensorInfo, ...]:
        """The model's inputs."""
        return self._described(name).inputs

    def outputs(self, name: str) -> tuple[TensorInfo, ...]:
        """The model's outputs."""
        return self._described(name).outputs

    def fitting(self, name: str) -> Fitting:
        """How the model's inputs find one of the shapes of its library."""
        return self._described(name).fitting

    @property
    def budget(self) -> int:
        """Bytes of all models together."""
        return self._plan()["budget_bytes"]

    def plan(self) -> PoolPlan:
        """The shares of the models, now or as soon as running inferences have ended."""
        plan = self._plan()
        plan["models"] = tuple(PooledModel(**model) for model in plan["models"])
        plan["lane_bytes"] = tuple(plan["lane_bytes"])
        return PoolPlan(**plan, units=self._units)

    def stats(self, *, at_once: bool = True) -> dict[str, Any]:
        """Counts and memory, all of one moment. With `at_once=False` no request waits for this call, and moments differ.

        Of the pool: budget_bytes, claimed_bytes (held by models, or by inferences until their end), shared_bytes (of these, for
        weights that several models have), resident_bytes (in memory), reshared, lanes (bytes, resident_bytes, busy, waiting).

        Of each model in `models`: requests, completed, failed, refused, missed (deadlines, of admitted requests), dropped (of
        these, before they began), cancelled, restarts, waiting, running, rate (counted; None: not yet), rung, working_bytes,
        kept_bytes, shared_bytes, resident_bytes (of its own), broken (why the model cannot run, or None); of the last inference
        wait_ms, latency_ms, stall_ms, bytes_read; of all inferences total_latency_ms, total_stall_ms, total_bytes_read.
        """
        with translated():
            return json.loads(function(self._pool, "stats" if at_once else "stats_in_passing")())

    def broken(self, name: str) -> str | None:
        """Why the model cannot run any more, or None. Cheap enough to be asked often, unlike `stats`."""
        self._member(name)
        with translated():
            return str(function(self._pool, "broken")(name)) or None

    def resident_arena(self) -> int:
        """Bytes of all arenas that are in memory now."""
        return self.stats()["resident_bytes"]

    def close(self) -> None:
        """Give memory, threads and files back; waiting requests fail. Closing twice is harmless, also in a forked process."""
        self.closed = True  # first, so that callers told of the end see it set
        _end(self._pool, self._collector, self._process)  # again if this was interrupted
        self._closing.detach()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _described(self, name: str) -> _Member:
        said = None
        if isinstance(name, str) and name.isprintable():
            self._require_this_process()
            with translated():
                said = json.loads(function(self._pool, "describe")(name))
        if said is None:
            raise InputError(f"there is no model {name!r} in the pool: there is {', '.join(self.models) or 'none'}")
        return _Member(said["number"], Fitting(said))

    def _member(self, name: str) -> _Member:
        """As described when first asked for."""
        try:
            return self._members[name]
        except (KeyError, TypeError):
            member = self._members[name] = self._described(name)
            return member

    def _of_member(self, name: str, ask: Callable[[_Member], _Asked]) -> _Asked:
        """The result of `ask` for the model that has this name now."""
        while True:
            try:
                return ask(self._member(name))
            except ModelGoneError:
                self._members.pop(name, None)

    def _tensors(self, member: _Member, inputs: Mapping[str, Any]) -> tuple[list[tvm_ffi.Tensor], list[np.ndarray]]:
        """All tensors of a request, whose last are its outputs, and the arrays of these."""

        def shape_of(*extents: tvm_ffi.Shape) -> int:
            shape = function(self._pool, "shape_of")(member.number, *extents)
            if shape is None:
                raise ModelGoneError
            return shape

        with translated():
            fitted = member.fitting.fitted(given_inputs(member.inputs, inputs, ()), shape_of)
        results = [np.empty(port.shape, port.array_dtype) for port in fitted.outputs]
        return [tvm_ffi.from_dlpack(array) for array in (*fitted.inputs, *results)], results

    def _plan(self) -> dict[str, Any]:
        with translated():
            return json.loads(function(self._pool, "plan")())

    def _require_this_process(self) -> None:
        if os.getpid() != self._process:  # a lock may be held there for ever
            raise ExecutionError("the pool was made before this process was forked: make one here")


def _request(deadline_ms: float | None, late: str, **more: bool) -> str:
    """Options of a request, as the runtime takes them."""
    options: dict[str, Any] = {"late": checked_name(late, LATE, "late") == "run", **more}
    if deadline_ms is not None:
        options["deadline_ms"] = _positive(deadline_ms, "deadline_ms")
    return json.dumps(options)


def pool_bytes(budget: int | float | str | Budget) -> int:
    """A budget in bytes. Raises BudgetError for one that only a single model has, such as a fraction."""
    nbytes = parse_budget(budget).nbytes
    if nbytes is None:
        raise BudgetError(f"a budget of several models is a number of bytes, such as 200MB, not {budget!r}")
    return nbytes


def _positive(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 < given < math.inf:
        raise InputError(f"{what} must be a number above 0, not {given!r}")
    return float(given)


def _end(pool: tvm_ffi.Module, collector: Collector, process: int) -> None:
    if os.getpid() != process:
        return
    with translated():
        function(pool, "close")()
    collector.join()

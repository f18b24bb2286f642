"""Several models under one budget (`runtime_ext/pool/pool.h`)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.arguments import checked_name, checked_number, checked_path, checked_seconds, checked_text
from flexcomp.errors import BudgetError, InputError, RefusedError
from flexcomp.units import human_bytes

from .budget import Budget, parse_budget
from .library import function, load_program, translated
from .ports import TensorInfo, checked_inputs, named_outputs, ports_of
from .session import check_options, plain

if TYPE_CHECKING:
    from .watch import Watch

LATE = ("refuse", "run")
_CREATE = "flexcomp.pool.1.create"  # of the runtime; the number is that of its JSON
_STEP = 1.25  # between the budgets that a watch tries


@dataclass(frozen=True)
class PooledModel:
    """A model's share of a pool."""

    name: str
    lane: int
    urgency: float
    rate: float  # requests in a second: given, or learnt
    deadline_ms: float | None
    rung: int
    rungs: int
    working_bytes: int  # of the lane, in an inference
    kept_bytes: int  # between inferences
    predicted_ms: float
    likely_ms: float  # as its inferences have shown


@dataclass(frozen=True)
class PoolPlan:
    """What each model of a pool gets, as a table when printed."""

    budget_bytes: int
    bytes: int  # that all need together
    least_bytes: int  # the smallest budget for these models
    most_bytes: int  # with more, nothing gets faster
    lane_bytes: tuple[int, ...]
    models: tuple[PooledModel, ...]

    def __str__(self) -> str:
        head = ("model", "lane", "weight", "rung", "working", "kept", "predicted", "likely")
        columns = list(zip(head, *(_row(model) for model in self.models), strict=True))
        widths = [max(map(len, column)) for column in columns]
        names = [name.ljust(widths[0]) for name in columns[0]]
        others = [[cell.rjust(width) for cell in column] for column, width in zip(columns[1:], widths[1:], strict=True)]
        lines = ["  ".join(row) for row in zip(names, *others, strict=True)]
        lanes = " + ".join(human_bytes(nbytes) for nbytes in self.lane_bytes)
        used = f"{human_bytes(self.bytes)} of {human_bytes(self.budget_bytes)}, of which lanes work in {lanes}"
        return "\n".join([*lines, used])


@dataclass(frozen=True)
class PoolStep:
    """A budget that a watch may choose."""

    budget_bytes: int


def _row(model: PooledModel) -> tuple[str, ...]:
    return (
        model.name,
        str(model.lane),
        f"{model.urgency * model.rate:.3g}",
        f"{model.rung + 1} of {model.rungs}",
        human_bytes(model.working_bytes),
        human_bytes(model.kept_bytes),
        f"{model.predicted_ms:.2f} ms",
        f"{model.likely_ms:.2f} ms",
    )


class PoolFuture(Future):
    """The outputs of a request, by name; `await` works, too. `cancel` takes it out of the queue if it has not begun."""

    def __init__(self, cancel: Callable[[], bool]) -> None:
        super().__init__()
        self._take_out = cancel
        self.wait_ms: float | None = None  # in the queue, of a request that was run

    def cancel(self) -> bool:
        """Whether the request is not run."""
        return self.cancelled() or (self._take_out() and super().cancel())

    def __await__(self) -> Generator[Any, None, dict[str, np.ndarray]]:
        return asyncio.wrap_future(self).__await__()


@dataclass(frozen=True)
class _Member:
    """What the pool knows of a model here."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class _Begun:
    """A request that is to be collected."""

    future: PoolFuture
    outputs: tuple[TensorInfo, ...]
    results: list[np.ndarray]


class Pool:
    """Several models that take turns in one budget.

    `budget` is a number of bytes, as a session's may be written. `lanes` inferences run at a time, each on cores of its own;
    models of one lane work in the same memory, so that only what they keep between inferences adds up. `threads` compute in each
    lane, as many as it has cores unless told otherwise. Of each model `queue` requests may wait.

    Each model is on the rung of its ladder with which the sum of rate · urgency · latency is least (`flexcomp.runtime.shares`),
    found anew when the budget, the models or their rates change. Then models that are idle give memory back at once. All
    calls may come from any thread.
    """

    def __init__(self, budget: int | str | Budget, lanes: int = 1, threads: int | None = None, *, queue: int = 64) -> None:
        options = {
            "budget_bytes": pool_bytes(budget),
            "lanes": checked_number(lanes, "lanes", least=1),
            "threads": None if threads is None else checked_number(threads, "threads", least=1),
            "queue": checked_number(queue, "queue", least=1),
        }
        runtime_ext.register()
        with translated():
            self._pool = tvm_ffi.get_global_func(_CREATE)(json.dumps(options))
        self._submit, self._wait, self._cancel, self._collect = (
            function(self._pool, name) for name in ("submit", "wait", "cancel", "collect")
        )
        self._members: dict[str, _Member] = {}
        self._begun: dict[int, _Begun] = {}
        self._lock = threading.Lock()
        self._collector: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Pool of {', '.join(self._members) or 'no models'}>"

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

        `urgency` is what a second of its latency costs beside the others'. `rate` are its requests in a second; None: they are
        counted. `deadline_ms` is that of requests that give none: shares are made such that it can be met. `keep` bounds what
        it keeps between inferences: "auto" is whatever its share is, or a number of bytes. `weights` and further options are
        those of `flexcomp.load`. A library that is added twice is held once, unless its network keeps state.

        Raises BudgetError where the budget is too small for one model more, ArtifactError, TargetError, InputError; then
        nothing has changed.
        """
        check_options(options)
        name = checked_text(name, "the model's name")
        model = {
            "urgency": _positive(urgency, "urgency"),
            "rate": None if rate is None else _positive(rate, "rate"),
            "deadline_ms": None if deadline_ms is None else _positive(deadline_ms, "deadline_ms"),
            "keep_bytes": None if keep == "auto" else 0 if keep == 0 else pool_bytes(keep),
        }
        path = checked_path(path, "the library").resolve()
        program, library = load_program(path)
        found = path.with_suffix(".weights") if weights is None else checked_path(weights, "weights").resolve()
        info = json.loads(program.get_function("summary")())
        with translated():
            function(self._pool, "add")(
                name, json.dumps(model), program, library, str(found), json.dumps(options, default=plain)
            )
        self._members[name] = _Member(ports_of(info["inputs"]), ports_of(info["outputs"]))

    def remove(self, name: str) -> None:
        """Close a model: its requests that wait fail, that which runs ends."""
        self._member(name)
        with translated():
            function(self._pool, "remove")(name)
        self._members.pop(name, None)

    def run(
        self, name: str, inputs: Mapping[str, Any], *, deadline_ms: float | None = None, late: str = "refuse"
    ) -> dict[str, np.ndarray]:
        """One inference of the model `name`, in its turn; outputs by name.

        With a deadline, from now on, a request is refused that would not meet it, or make another miss its own, and dropped if
        it passes before the request begins; `late="run"` runs it all the same. Raises RefusedError, InputError,
        StorageError, ExecutionError.
        """
        member = self._member(name)
        results = [np.empty(port.shape, port.array_dtype) for port in member.outputs]
        number = self._begin(name, member, inputs, results, deadline_ms, late, collected=False)
        self._finish(number)
        return named_outputs(member.outputs, results)

    def submit(
        self, name: str, inputs: Mapping[str, Any], *, deadline_ms: float | None = None, late: str = "refuse"
    ) -> PoolFuture:
        """The same without waiting: the future has the outputs, or the error. Raises RefusedError at once."""
        member = self._member(name)
        results = [np.empty(port.shape, port.array_dtype) for port in member.outputs]
        with self._lock:
            number = self._begin(name, member, inputs, results, deadline_ms, late, collected=True)
            future = PoolFuture(lambda: self._take_out(number))
            self._begun[number] = _Begun(future, member.outputs, results)
            if self._collector is None:
                self._collector = threading.Thread(target=self._collect_all, name="flexcomp-pool", daemon=True)
                self._collector.start()
        return future

    def set_budget(self, budget: int | str | Budget) -> PoolPlan:
        """Share another budget. When this returns, no more is held; inferences that had to give memory back begin anew.

        Raises BudgetError, with the smallest budget for these models, and changes nothing.
        """
        with translated():
            function(self._pool, "set_budget")(pool_bytes(budget))
        return self.plan()

    def watch(
        self, source: str | os.PathLike[str] | Callable[[], int | None], *, interval_s: float = 0.2, patience_s: float = 2.0
    ) -> Watch:
        """Let the budget follow `source`, as `Session.watch` does, in steps of a quarter between the smallest and the largest."""
        from .watch import Watch, source_of

        interval_s, patience_s = checked_seconds(interval_s, "interval_s"), checked_seconds(patience_s, "patience_s")
        return Watch(self, source_of(source), interval_s, patience_s)

    @property
    def ladder(self) -> tuple[PoolStep, ...]:
        """Budgets for these models, a quarter apart."""
        plan = self._plan()
        least, most = max(plan["least_bytes"], 1), plan["most_bytes"]
        steps = math.ceil(math.log(max(most / least, 1), _STEP))
        return (*(PoolStep(math.ceil(least * _STEP**i)) for i in range(steps)), PoolStep(max(least, most)))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(self._members)

    def inputs(self, name: str) -> tuple[TensorInfo, ...]:
        """What the model takes."""
        return self._member(name).inputs

    def outputs(self, name: str) -> tuple[TensorInfo, ...]:
        """What it gives."""
        return self._member(name).outputs

    @property
    def budget(self) -> int:
        """Bytes of all models together."""
        return self._plan()["budget_bytes"]

    def plan(self) -> PoolPlan:
        """The shares, as they are or will be when running inferences have ended."""
        plan = self._plan()
        plan["models"] = tuple(PooledModel(**model) for model in plan["models"])
        plan["lane_bytes"] = tuple(plan["lane_bytes"])
        return PoolPlan(**plan)

    def stats(self) -> dict[str, Any]:
        """What was done, and what is held.

        Keys: budget_bytes, claimed_bytes (that models hold, or inferences may hold by their end), reshared, lanes (bytes,
        resident_bytes, busy, waiting), models: by name requests, completed, failed, refused, missed (deadlines), restarts,
        waiting, running, rate (learnt; None: not yet), rung, working_bytes, kept_bytes, resident_bytes, broken (why it cannot
        run, or None); wait_ms, latency_ms, stall_ms, bytes_read of the last inference, total_bytes_read.
        """
        with translated():
            return json.loads(function(self._pool, "stats")())

    def resident_arena(self) -> int:
        """Bytes of all arenas that are in memory now."""
        stats = self.stats()
        return sum(one["resident_bytes"] for one in (*stats["lanes"], *stats["models"].values()))

    def close(self) -> None:
        """Give memory, threads and files back; what waits fails. Closing twice is harmless, and so it is in a forked process."""
        with translated():
            function(self._pool, "close")()
        collector = self._collector
        if collector is not None and collector is not threading.current_thread():
            collector.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _member(self, name: str) -> _Member:
        try:
            return self._members[name]
        except (KeyError, TypeError):
            raise InputError(f"there is no model {name!r} in the pool: there is {', '.join(self._members) or 'none'}") from None

    def _plan(self) -> dict[str, Any]:
        with translated():
            return json.loads(function(self._pool, "plan")())

    def _begin(
        self,
        name: str,
        member: _Member,
        inputs: Mapping[str, Any],
        results: list[np.ndarray],
        deadline_ms: float | None,
        late: str,
        *,
        collected: bool,
    ) -> int:
        options: dict[str, Any] = {"late": checked_name(late, LATE, "late") == "run", "collected": collected}
        if deadline_ms is not None:
            options["deadline_ms"] = _positive(deadline_ms, "deadline_ms")
        given = checked_inputs(member.inputs, inputs, ())
        with translated():
            answer = self._submit(name, json.dumps(options), *map(tvm_ffi.from_dlpack, [*given, *results]))
        return _accepted(json.loads(answer))["id"]

    def _finish(self, number: int) -> dict[str, Any]:
        with translated():
            answer = self._wait(number)
        return _accepted(json.loads(answer))

    def _take_out(self, number: int) -> bool:
        with translated():
            taken = bool(self._cancel(number))
        if taken:
            with self._lock:
                self._begun.pop(number, None)
        return taken

    def _collect_all(self) -> None:
        while number := self._collect():
            with self._lock:
                begun = self._begun.pop(number)
            if not begun.future.set_running_or_notify_cancel():
                continue
            try:
                begun.future.wait_ms = self._finish(number)["wait_ms"]
            except BaseException as error:
                begun.future.set_exception(error)
            else:
                begun.future.set_result(named_outputs(begun.outputs, begun.results))


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


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if refused := answer.get("refused"):
        raise RefusedError(refused["message"], refused["reason"], refused["retry_after_s"])
    return answer

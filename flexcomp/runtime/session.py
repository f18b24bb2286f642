"""Runs compiled networks. Loading one imports neither TVM nor anything of the compiler."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tvm_ffi

from flexcomp.arguments import checked_milliseconds, checked_number, checked_path
from flexcomp.errors import (
    ArtifactError,
    FlexcompError,
    InputError,
)
from flexcomp.renamed import Renamed, milliseconds, renamed
from flexcomp.units import enough

from .budget import Budget, resolve_in
from .display import ladder_html
from .fitting import Fitting
from .library import function, load_program, translated
from .load_options import Cpus, LoadOptions
from .ports import (
    checked_states,
    given_inputs,
    named_outputs,
    output_tensors,
    ports_of,
)
from .trace import Trace, parse_trace

if TYPE_CHECKING:  # only for sessions that watch
    from .watch import Watch

_log = logging.getLogger(__name__)
STARTS = ("cold", "warm")


@dataclass(frozen=True)
class RungInfo:
    """One budget of the ladder."""

    budget_bytes: int
    arena_bytes: int  # weights, activations and scratch at run time
    working_bytes: int  # the part that inferences work in; the rest stays between inferences
    pinned_bytes: int  # weights that stay in the arena between inferences
    streamed_bytes: int  # weights read in every inference
    predicted_ms: float  # one inference in the steady state, on the device the plan was made for


@renamed(help="work_stealing")
def load(
    path: str | os.PathLike[str],
    budget: int | float | str | Budget | None = None,
    threads: int | None = None,
    verify: bool = False,
    *,
    start: str = "cold",
    weights: str | os.PathLike[str] | None = None,
    direct: bool = True,
    read_bandwidth: float | None = None,
    compute_cpus: Cpus | None = None,
    loader_cpu: Cpus | None = None,
    affinity: bool = True,
    work_stealing: bool = True,
    trace: bool = False,
) -> Session:
    """Open a compiled network.

    `path`: the library. `weights`: the weights file; None: NAME.weights next to the library NAME.so.
    `budget`: as for `flexcomp.build`. The session uses the largest plan within it; None: the smallest plan that is nearly as fast
    as any.
    `threads`: compute threads; None: as built, or one for each compute core if these are fewer.
    `verify`: True checks every byte of the weights at once, and again in each read. Checksums take a thousandth of the weights
    file's size in memory, beyond the budget.
    `start`: "warm" loads the weights that stay in memory now (see `Session.warm`); "cold" leaves this to the first inference.
    `compute_cpus`, `loader_cpu`: the cores for kernels and for the loader, as a number, a sequence or a list such as "4-7". None:
    kernels run on the big cores and the loader on a little one, where cores differ. `affinity=False` binds no thread to a core.
    `direct`: False reads weights through the page cache.
    `read_bandwidth`: bytes per second of slower storage, which the session then imitates.
    `work_stealing`: False keeps threads that wait for weights from helping the loader.
    `trace`: True notes when steps and loads run, for `Session.trace`.

    Raises ArtifactError, BudgetError, TargetError, InputError.
    """
    options = LoadOptions(verify, direct, read_bandwidth, compute_cpus, loader_cpu, affinity, work_stealing, trace)
    if start not in STARTS:
        raise InputError(f"start must be {' or '.join(map(repr, STARTS))}, not {start!r}")
    if threads is not None:
        threads = checked_threads(threads)
    path = checked_path(path, "the library").resolve()
    program, name = load_program(path)
    info = json.loads(program.get_function("info")())
    nbytes = resolve_in(budget, info)
    weights = path.with_suffix(".weights") if weights is None else checked_path(weights, "weights")
    if not weights.exists():
        raise ArtifactError(f"the weights file {weights} is missing")
    asked = options.to_json(library_path=name, budget_bytes=nbytes, threads=threads)
    with translated():
        opened = function(program, "open")(str(weights), asked)
    session = Session(program, opened, info)
    if threads is not None:
        _note_sharing(session.stats())
    if start == "warm":
        try:
            session.warm()
        except BaseException:
            session.close()
            raise
    return session


class Session:
    """An open network. Any thread may call; inferences take turns."""

    def __init__(self, program: tvm_ffi.Module, opened: tvm_ffi.Module, info: dict) -> None:
        self._program = program
        self._opened = opened
        self.closed = False
        self._run, self._set_budget, self._stats, self._close = (
            function(opened, name) for name in ("run", "set_budget", "stats", "close")
        )
        self.info: dict = info  # as `flexcomp inspect --json` prints it, without slices
        self._fitting = Fitting(info)
        self.shapes = self._fitting.shapes  # the largest first
        self.inputs, self.outputs = self._fitting.inputs, self._fitting.outputs  # an extent that shapes differ in is -1
        self.states = ports_of(info.get("states", ()))
        # States that nothing but set_state changes.
        self.staying = frozenset(one["name"] for one in info.get("states", ()) if one["output"] == one["name"])
        self.ladder = tuple(RungInfo(**rung) for rung in info["ladder"])

    def __repr__(self) -> str:
        try:
            state = self.stats()
        except FlexcompError:
            return f"<Session {self.info['model']}, closed>"
        ports = ", ".join(f"{port.name}: {port}" for port in self.inputs)
        results = ", ".join(f"{port.name}: {port}" for port in self.outputs)
        threads = f"{state['threads']} thread{'s' * (state['threads'] > 1)}"
        used, most = enough(state["budget_bytes"]), enough(self.info["resident_bytes"])
        return f"<Session {self.info['model']}: {ports} -> {results}; {used} of {most}, {threads}>"

    def _repr_html_(self) -> str:
        try:
            used = self.budget
        except FlexcompError:
            used = None
        return ladder_html(f"{self.info['model']}: budgets" + (", closed" if used is None else ""), self.info["ladder"], used)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("a session cannot be pickled or copied: another process opens one of its own with flexcomp.load")

    def run(
        self, inputs: Mapping[str, Any] | None = None, *args: Any, outputs: Mapping[str, Any] | str | None = None
    ) -> dict[str, Any]:
        """One inference: `run({"x": x})`, or `run(x, …)` in the order of `inputs`. Returns the outputs by name.

        A library of several shapes runs the shape of the inputs; the state stays. A library built with `pad` takes all extents up
        to the largest, and outputs have the extents of the inputs.

        `outputs`: tensors by name, for some or all outputs, that results are written to. A network built for a GPU takes and
        gives tensors of the first GPU, too, by DLPack and without copies to the CPU. Earlier work on such inputs must be
        complete, or be on the default stream. "cuda" in place of a tensor, or of the dict, asks for a new tensor on the GPU; its
        memory is not part of the budget, and may outlive the session.

        A bfloat16 input is an array of ml_dtypes.bfloat16, or its bits as uint16. A bfloat16 output is an array of
        ml_dtypes.bfloat16 where ml_dtypes is installed, and otherwise uint16.

        Raises InputError (a ValueError), StorageError, ExecutionError, CancelledError. The session works on afterwards, unless
        the weights file was changed in place: then load the network again.
        """
        values = given_inputs(self.inputs, inputs, args)
        with translated():
            fitted = self._fitting.fitted(values, lambda *extents: function(self._opened, "shape_of")(*extents))
            results = output_tensors(fitted.outputs, outputs or {}, lambda index: function(self._opened, "new_output")(index))
            self._run(*map(tvm_ffi.from_dlpack, (*fitted.inputs, *results)))
        return named_outputs(self.outputs, results)

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """One inference with inputs in order or by name. Returns the output, or a tuple of several outputs."""
        if args and kwargs:
            raise InputError("give inputs in order or by name, not both")
        outputs = tuple((self.run(kwargs) if kwargs else self.run(*args)).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def set_budget(self, budget: int | float | str | Budget | None) -> RungInfo:
        """Switch to the largest plan within `budget`; any thread may call this at any time.

        A smaller budget stops an inference in progress after the running kernel, and starts the inference anew. The memory has
        been given back when this call returns. A larger budget counts from the next inference on; the call does not wait.
        """
        nbytes = resolve_in(budget, self.info)
        with translated():
            return RungInfo(**json.loads(self._set_budget(nbytes)))

    def cancel(self) -> None:
        """End the inference in progress, from any thread: its `run` raises CancelledError after the running kernel.

        The state stays as before that inference, and weights in memory stay there. Inferences that wait for their turn go on.
        """
        with translated():
            function(self._opened, "cancel")()

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the state for the next inference, by the names of its inputs. See `flexcomp.build`.

        The three methods for states wait for an inference in progress. After an inference that failed or began anew in a smaller
        budget, the state is as before that inference.
        """
        found = [np.empty(port.shape, port.array_dtype) for port in self.states]
        with translated():
            function(self._opened, "get_states")(*map(tvm_ffi.from_dlpack, found))
        return named_outputs(self.states, found)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replace all or part of the state, by names as `state` gives. Raises InputError (a ValueError)."""
        given = checked_states(self.states, state)
        with translated():
            pairs = (one for index, array in given for one in (index, tvm_ffi.from_dlpack(array)))
            function(self._opened, "set_states")(*pairs)

    def state_parts(self, count: int, axis: int) -> dict[str, np.ndarray]:
        """As `state`, of each tensor the first `count` elements along an axis; bfloat16 as its bits."""
        shapes = [(*port.shape[:axis], count, *port.shape[axis + 1 :]) for port in self.states]
        found = [np.empty(shape, port.array_dtype) for shape, port in zip(shapes, self.states, strict=True)]
        with translated():
            function(self._opened, "get_state_parts")(*map(tvm_ffi.from_dlpack, found))
        return {port.name: array for port, array in zip(self.states, found, strict=True)}

    def set_state_parts(self, parts: Mapping[str, np.ndarray]) -> None:
        """Replace the first elements of states by arrays as `state_parts` gives; others stay. Raises InputError."""
        names = [port.name for port in self.states]
        with translated():
            pairs = (one for name, array in parts.items() for one in (names.index(name), tvm_ffi.from_dlpack(array)))
            function(self._opened, "set_state_parts")(*pairs)

    def reset_state(self) -> None:
        """Set the state to zeros, as when the session was opened."""
        with translated():
            function(self._opened, "reset_states")()

    @renamed(interval_s=Renamed("interval_ms", milliseconds), patience_s=Renamed("patience_ms", milliseconds))
    def watch(
        self,
        source: str | os.PathLike[str] | Callable[[], int | None],
        *,
        interval_ms: float = 200,
        patience_ms: float = 2000,
    ) -> Watch:
        """Let the budget follow `source` in a thread of its own, until the result is stopped or its `with` ends.

        `source`: "cgroup" (the limit of this process's memory control group, less other memory in this group); the folder of
        another group; "pressure" (PSI: one budget down while tasks wait for memory); or a function that returns the allowed
        bytes, or None for no change. The thread asks the source every `interval_ms` milliseconds. The budget shrinks at once, to
        the smallest one if nothing fits, and grows when a larger one has fitted for `patience_ms`.
        """
        from .watch import Watch, source_of

        interval_s = checked_milliseconds(interval_ms, "interval_ms") / 1e3
        patience_s = checked_milliseconds(patience_ms, "patience_ms") / 1e3
        return Watch(self, source_of(source), interval_s, patience_s)

    def stats(self) -> dict[str, Any]:
        """The plan in use, and times and bytes.

        Of the session: shape (index into `shapes`), rung, budget_bytes, arena_bytes, threads, compute_cpus and loader_cpus (None:
        any core), direct_io, staging_bytes (host memory outside the budget, through which weights go to a GPU; 0 on CPUs), runs,
        restarts (inferences begun anew because the budget shrank), total_bytes_read.

        Of the last inference: latency_ms, stall_ms, read_ms (reads were in flight), bytes_read, reads, prepared_bytes (weights
        brought into the kernels' form), prepare_ms (by the loader), help_ms (by waiting steps; a part of stall_ms).
        """
        with translated():
            return json.loads(self._stats())

    def trace(self) -> Trace:
        """When the steps and loads of the last inference ran. The session must be loaded with `trace=True`."""
        with translated():
            return parse_trace(function(self._opened, "trace")())

    def warm(self) -> float:
        """Load the weights that stay in memory between inferences, so that the next inference reads no more than later ones.

        Returns the seconds. Raises the errors of `run`. A smaller budget takes effect meanwhile.
        """
        with translated():
            return float(function(self._opened, "warm")())

    def resident_arena(self) -> int:
        """Bytes of the arena that are in memory now, without bytes that no inference has touched yet."""
        with translated():
            return int(function(self._opened, "resident_arena")())

    def read_rate(self, request_nbytes: int = 1 << 20, nbytes: int = 64 << 20) -> float:
        """Bytes per second that the loader reads from the storage, while nothing is computed.

        The loader makes reads of `request_nbytes`, together `nbytes` or more.
        """
        with translated():
            return float(function(self._opened, "read_rate")(request_nbytes, nbytes))

    @property
    def budget(self) -> int:
        """Bytes of the budget that the plan in use was made for."""
        return self.stats()["budget_bytes"]

    def rungs(self) -> tuple[RungInfo, ...]:
        """The plan of each of `shapes` for the budget."""
        with translated():
            return tuple(RungInfo(**json.loads(one)) for one in function(self._opened, "rungs")())

    def program_bytes(self) -> bytes:
        """The encoded program; `flexcomp.program.decode_program` reads it."""
        return bytes(self._program.get_function("blob")())

    def close(self) -> None:
        """Give memory, threads and files back. Closing twice is harmless, and so is closing in a forked process."""
        self.closed = True  # first, so that callers told of the end see it set
        with translated():
            self._close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def checked_threads(given: Any) -> int:
    """A number of compute threads. Raises InputError for anything else."""
    return checked_number(given, "threads", least=1)


def _note_sharing(stats: Mapping[str, Any]) -> None:
    """Say that there are more threads than cores for them."""
    cores = len(stats["compute_cpus"] or os.sched_getaffinity(0))
    if stats["threads"] > cores:
        shared = f"{cores} core{'s' * (cores > 1)}"
        _log.warning("%s threads share %s and wait for each other: fewer are faster", stats["threads"], shared)

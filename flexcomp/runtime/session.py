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
from .library import function, load_program, translated
from .load_options import Cpus, LoadOptions
from .padding import padding_of
from .ports import (
    ShapeInfo,
    as_arrays,
    checked_states,
    extents_of,
    given_inputs,
    named_outputs,
    output_tensors,
    ports_of,
    shapes_of,
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
    """Open the compiled network in `path`, whose weights lie next to the library unless `weights` names another file.

    `budget` is given as to `flexcomp.runtime.budget.parse_budget`; the largest plan within it is used. `threads`
    defaults to the number of the build, or the compute cores if fewer. `verify` checks every byte
    of the weights first, and again in each read: that takes a thousandth of the weights file's size in memory beyond the
    budget, and the loader computes checksums. `start="warm"` loads here the weights that stay in memory (see
    `Session.warm`), where `"cold"` leaves loading to the first inference, which computes meanwhile.
    Where cores differ (big.LITTLE), kernels run on the big ones and weights are loaded on little ones; otherwise
    the system places threads. `compute_cpus` and `loader_cpu` name cores instead, as a number, a sequence or a list such
    as "4-7"; `affinity=False` leaves all to the system.
    `direct=False` reads through the page cache, and `read_bandwidth` imitates storage of so many bytes per second. Threads that
    wait for weights help to load, unless `work_stealing=False`. `trace` notes when steps and loads run, for `Session.trace`.
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
    """An open network. Calls from several threads are carried out one after the other."""

    def __init__(self, program: tvm_ffi.Module, opened: tvm_ffi.Module, info: dict) -> None:
        self._program = program
        self._opened = opened
        self.closed = False
        self._run, self._set_budget, self._stats, self._close = (
            function(opened, name) for name in ("run", "set_budget", "stats", "close")
        )
        self.info: dict = info  # as `flexcomp inspect --json` prints it, without slices
        self.shapes = shapes_of(info)  # the largest first
        self._padding = padding_of(info, self.shapes)
        self.inputs = ports_of(info["inputs"])  # an extent that shapes differ in is -1
        self.outputs = ports_of(info["outputs"])
        self.states = ports_of(info.get("states", ()))
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

        Of a library of several shapes the inputs' one runs; states stay, and weights that its plan keeps like the one before.
        A library built with `pad` takes all extents up to the largest, and outputs have those of the inputs.

        `outputs` are tensors by name to write results to, which need not be all, and are returned. A network built for
        a GPU takes and gives tensors of the first GPU, too, by DLPack and without copies to the CPU. Work on inputs must be
        over, or be on the default stream; all is over when this returns. "cuda" in the place of a tensor, or of the dict,
        asks for a new one there, which other libraries take by DLPack; its memory is not part of the budget, and may outlive the
        session.

        A bfloat16 input may be an array of ml_dtypes.bfloat16, or its bits as uint16; outputs are the former where
        ml_dtypes is installed.

        Raises InputError (a ValueError), StorageError, ExecutionError, CancelledError; afterwards the session works on, unless
        the weights file was changed in place: whatever has to be read then is refused, until the network is loaded again.
        """
        values = given_inputs(self.inputs, inputs, args)
        shape, own = self._shapes_of(values)
        given = as_arrays(own.inputs, values)
        if self._padding is not None:
            given = self._padding.padded(given, shape.inputs)
        with translated():
            results = output_tensors(own.outputs, outputs or {}, lambda index: function(self._opened, "new_output")(index))
            whole = [
                result if port.shape == of.shape else np.empty(port.shape, port.array_dtype)
                for result, port, of in zip(results, shape.outputs, own.outputs, strict=True)
            ]
            self._run(*map(tvm_ffi.from_dlpack, given), *map(tvm_ffi.from_dlpack, whole))
        for result, made in zip(results, whole, strict=True):
            if made is not result:
                np.copyto(result, made[tuple(map(slice, result.shape))])
        return named_outputs(self.outputs, results)

    def _shapes_of(self, values: list[Any]) -> tuple[ShapeInfo, ShapeInfo]:
        """The shape that takes these inputs, and their own, which is smaller if they are padded. Raises InputError."""
        if self._padding is None:
            shape = self._shape_of(values)
            return shape, shape
        return self._padding.fit(self.shapes, {port.name: value for port, value in zip(self.inputs, values, strict=True)})

    def _shape_of(self, values: list[Any]) -> ShapeInfo:
        """The shape that takes these inputs. Raises InputError if the library was not built for it."""
        if len(self.shapes) == 1:
            return self.shapes[0]
        with translated():
            return self.shapes[function(self._opened, "shape_of")(*(tvm_ffi.Shape(extents_of(value)) for value in values))]

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """One inference with inputs in order or by name; a network with several outputs returns a tuple."""
        if args and kwargs:
            raise InputError("give inputs in order or by name, not both")
        outputs = tuple((self.run(kwargs) if kwargs else self.run(*args)).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def set_budget(self, budget: int | float | str | Budget | None) -> RungInfo:
        """Switch to the largest plan within `budget`; any thread may call it at any time.

        A smaller budget stops an inference in progress after the running kernel, and starts the inference anew: the
        memory has been given back when this returns. A larger one is used from the next inference on; this does not
        wait for it.
        """
        nbytes = resolve_in(budget, self.info)
        with translated():
            return RungInfo(**json.loads(self._set_budget(nbytes)))

    def cancel(self) -> None:
        """End the inference in progress, from any thread: its `run` raises CancelledError after the running kernel.

        The state is as before that inference, and weights in memory stay there. An inference that waits for its turn goes on.
        """
        with translated():
            function(self._opened, "cancel")()

    def state(self) -> dict[str, np.ndarray]:
        """The state for the next inference, by the names of its inputs; copies. See `flexcomp.build`.

        This and the next two methods wait for an inference in progress. After an inference that fails, or when one begins anew
        because the budget shrank, the state is as before that inference.
        """
        found = [np.empty(port.shape, port.array_dtype) for port in self.states]
        with translated():
            function(self._opened, "get_states")(*map(tvm_ffi.from_dlpack, found))
        return named_outputs(self.states, found)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state, or some of it, by names as `state` gives. Raises InputError (a ValueError)."""
        given = checked_states(self.states, state)
        with translated():
            pairs = (one for index, array in given for one in (index, tvm_ffi.from_dlpack(array)))
            function(self._opened, "set_states")(*pairs)

    def reset_state(self) -> None:
        """Clear the state: all zeros, as when the session was opened."""
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

        `source` is "cgroup" (the limit of this process's memory control group, less other memory in it), the folder
        of another group, "pressure" (PSI: one budget down while tasks wait for memory), or a function that returns
        the allowed bytes, or None to leave things as they are. The source is asked every `interval_ms` milliseconds. The budget
        shrinks at once, to the smallest one if nothing fits, and grows when a larger one has fitted for `patience_ms`.
        """
        from .watch import Watch, source_of

        interval_s = checked_milliseconds(interval_ms, "interval_ms") / 1e3
        patience_s = checked_milliseconds(patience_ms, "patience_ms") / 1e3
        return Watch(self, source_of(source), interval_s, patience_s)

    def stats(self) -> dict[str, Any]:
        """The plan in use, and times and bytes of the last inference.

        Keys: shape (index into `shapes`), rung, budget_bytes, arena_bytes, threads, compute_cpus, loader_cpus (None: on any
        core), direct_io,
        staging_bytes (of the process, outside the budget, through which weights come to a GPU; 0 on CPUs), runs,
        restarts (inferences begun anew because the budget shrank), latency_ms, stall_ms, read_ms (in which reads were
        in flight), bytes_read, reads, prepared_bytes (weights in the kernels' form, made from read weights), prepare_ms (the
        loader's), help_ms (by steps that waited; within stall_ms) (of the last inference), total_bytes_read.
        """
        with translated():
            return json.loads(self._stats())

    def trace(self) -> Trace:
        """When the steps and loads of the last inference ran. The session must be loaded with `trace=True`."""
        with translated():
            return parse_trace(function(self._opened, "trace")())

    def warm(self) -> float:
        """Load missing weights that stay in memory between inferences: the next inference then reads no more than all others.

        Returns the seconds. Raises the errors of running; a smaller budget that is set meanwhile is seen.
        """
        with translated():
            return float(function(self._opened, "warm")())

    def resident_arena(self) -> int:
        """Bytes of the arena that are in memory now; those that no inference has touched yet are not."""
        with translated():
            return int(function(self._opened, "resident_arena")())

    def read_rate(self, request_nbytes: int = 1 << 20, nbytes: int = 64 << 20) -> float:
        """Bytes per second that the storage gives to the loader alone, by reads of `request_nbytes`, `nbytes` or more in all."""
        with translated():
            return float(function(self._opened, "read_rate")(request_nbytes, nbytes))

    @property
    def budget(self) -> int:
        """Bytes of the budget that the plan in use was made for."""
        return self.stats()["budget_bytes"]

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

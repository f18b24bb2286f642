"""`tune`: measure which kernels are fastest on a device, and remember it in a database that `build` reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import onnx
import tvm

from flexcomp import __version__
from flexcomp.artifact import WeightsDigest
from flexcomp.errors import InputError, TuningError
from flexcomp.frontend import load_model
from flexcomp.linker import linker_for
from flexcomp.target import CompileTarget, resolve_target
from flexcomp.tuning.local import Devices, Measurement, ThisMachine
from flexcomp.tuning.records import Database, Record
from flexcomp.tuning.rpc import RemoteDevices
from flexcomp.tuning.search import Search
from flexcomp.tuning.tasks import Task, tasks_of
from flexcomp.tuning.trial import Trial, TrialLibrary, build_library, write_data
from flexcomp.tuning.workers import Workers, outcome

Choice = tuple[int, str]  # task, kernel

_BATCH = 8
_CONFIRMATIONS = 3  # of default and best kernels at the end


@dataclass(frozen=True)
class TunedLayer:
    """A layer's kernels before and after."""

    description: str
    count: int  # layers of the network that are like this
    trials: int  # all in the database, earlier ones included
    default: str
    default_seconds: float | None  # None: it was not measured, or failed
    best: str | None
    best_seconds: float | None

    @property
    def saved(self) -> float:
        """Seconds that the better kernel saves in one inference."""
        if self.default_seconds is None or self.best_seconds is None:
            return 0.0
        return self.count * (self.default_seconds - self.best_seconds)


@dataclass(frozen=True)
class TuningReport:
    """What a tuner achieved."""

    database: Path
    trials: int  # of this run
    failed: int
    layers: tuple[TunedLayer, ...]

    @property
    def default_seconds(self) -> float:
        """One inference in the kernels chosen without tuning, as far as they were measured."""
        return sum(layer.count * (layer.default_seconds or 0.0) for layer in self.layers)

    @property
    def best_seconds(self) -> float:
        """The same layers in the best kernels."""
        return self.default_seconds - sum(layer.saved for layer in self.layers)


@dataclass(frozen=True)
class TrialDone:
    """News for a progress display."""

    done: int
    total: int
    layer: str
    kernel: str
    seconds: float | None
    error: str | None
    default_seconds: float | None
    best_seconds: float | None


def tune(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    *,
    database: str | os.PathLike[str],
    trials: int = 200,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
    threads: int | None = None,
    tracker: str | None = None,
    key: str | None = None,
    compiler: str | None = None,
    timeout_s: float = 30.0,
    progress: Callable[[TrialDone], None] | None = None,
) -> TuningReport:
    """Measure at most `trials` kernels of a network's layers and append every outcome to `database`.

    Arguments that `build` has too mean the same. A database that exists is continued: what it holds is not measured
    again. Without a `tracker` ("host:port") the kernels run on this machine; with one, on all devices that it knows
    under `key`. A candidate that takes longer than `timeout_s` to build, or to measure, has failed.

    Raises ModelError, UnsupportedModelError, TargetError, InputError, and TuningError if the database is broken or no
    device can measure.
    """
    if trials < 1:
        raise InputError(f"trials must be at least 1, not {trials}")
    if (tracker is None) != (key is None):
        raise InputError("a tracker and a key go together")
    resolved = resolve_target(target)
    threads = threads or resolved.num_cores
    records = Database.open(database)
    unit = replace(resolved.vector_unit, threads=threads)
    tasks = tasks_of(load_model(model, input_shapes, params), unit)
    if not tasks:
        raise InputError("the network has no layer with a choice of kernels")
    linker_for(resolved, compiler)  # a missing compiler is no fault of the candidates
    tuner = _Tuner(tasks, resolved, threads, records, compiler, timeout_s)
    with tempfile.TemporaryDirectory(prefix="flexcomp-tune-") as folder:
        tuner.run(Path(folder), trials, tracker, key, progress or (lambda news: None))
    return tuner.report()


class _Tuner:
    def __init__(
        self, tasks: list[Task], target: CompileTarget, threads: int, records: Database, compiler: str | None, timeout_s: float
    ) -> None:
        self.tasks, self.target, self.threads = tasks, target, threads
        self.records, self.compiler, self.timeout_s = records, compiler, timeout_s
        self.search = Search(tasks, replace(target.vector_unit, threads=threads))
        self.done = self.failed = 0
        self._held_back: list[Record] = []  # failures while nothing has worked yet
        self._worked = False
        self._libraries: dict[Choice, TrialLibrary] = {}  # of default and best kernels, built in this run
        for index, task in enumerate(tasks):
            earlier = records.trials((task.layer, str(target), threads)).values()
            self.search.known(index, {r.kernel: r.seconds for r in earlier if r.flexcomp == __version__})

    def run(
        self, folder: Path, trials: int, tracker: str | None, key: str | None, progress: Callable[[TrialDone], None]
    ) -> None:
        data = folder / "trial.weights"
        digest = write_data(data, [c for task in self.tasks for c in task.candidates.values()])
        with closing(self._devices(data, tracker, key)) as devices, closing(self._builders()) as builders:
            while self.done < trials:
                batch = self.search.propose(min(max(_BATCH, 2 * devices.count), trials - self.done))
                if not batch:
                    break
                self._batch(batch, folder, digest, builders, devices, lambda *n: progress(self._news(*n, trials)))
            self._confirm(devices)

    def _devices(self, data: Path, tracker: str | None, key: str | None) -> Devices:
        if tracker is not None and key is not None:
            return RemoteDevices(tracker, key, data, self.threads, self.timeout_s)
        return ThisMachine(self.target, data, self.threads, self.timeout_s)

    def _builders(self) -> Workers:
        return Workers(len(os.sched_getaffinity(0)), self.timeout_s)

    def _batch(
        self, batch: list[Choice], folder: Path, digest: WeightsDigest, builders: Workers, devices: Devices, news: Callable
    ) -> None:
        """Build and measure candidates, and tell the search."""
        outcomes: dict[Choice, float | None] = {}
        built = []
        for choice, library, error in self._built(batch, folder, digest, builders):
            if library is None:
                self._note(choice, Measurement("the builder", error=f"building: {error}"), outcomes, news)
            else:
                built.append((choice, library))
        for index, measurement in devices.measure([library for _, library in built]):
            self._note(built[index][0], measurement, outcomes, news)
        # What disturbs a machine for a moment seldom disturbs the same trial twice.
        again = [(choice, library) for choice, library in built if outcomes[choice] is not None]
        for index, measurement in devices.measure([library for _, library in again]):
            self._keep(again[index][0], measurement, outcomes)
        self.search.tell([(*choice, seconds) for choice, seconds in outcomes.items()])
        self._libraries.update(built)
        self._forget()
        if not self._worked:
            raise TuningError(f"no kernel could be measured: {self._held_back[0].error}")

    def _built(
        self, batch: list[Choice], folder: Path, digest: WeightsDigest, builders: Workers
    ) -> Iterator[tuple[Choice, TrialLibrary | None, str | None]]:
        futures = []
        for task, kernel in batch:
            trial = Trial(self.tasks[task].spec, kernel, str(self.target), self.threads, digest)
            futures.append(builders.submit(build_library, trial, str(folder / f"{trial.name}.so"), self.compiler))
        for choice, future in zip(batch, futures, strict=True):
            yield choice, *outcome(future, self.timeout_s)

    def _confirm(self, devices: Devices) -> None:
        """Measure the default and the best kernel of each layer in turns: it is they that are compared in the end."""
        trials = list(self._libraries.items())
        for _ in range(_CONFIRMATIONS):
            for index, measurement in devices.measure([library for _, library in trials]):
                self._keep(trials[index][0], measurement, {})

    def _forget(self) -> None:
        """Delete the libraries of all but default and best kernels."""
        for task, kernel in list(self._libraries):
            known = self.search.progress[task]
            if kernel not in (known.task.default, known.best and known.best[0]):
                Path(self._libraries.pop((task, kernel)).path).unlink(missing_ok=True)

    def _note(self, choice: Choice, measurement: Measurement, outcomes: dict, news: Callable) -> None:
        self.done += 1
        self.failed += measurement.error is not None
        self._keep(choice, measurement, outcomes)
        news(*choice, measurement)

    def _keep(self, choice: Choice, measurement: Measurement, outcomes: dict[Choice, float | None]) -> None:
        """Record a measurement; of several of one kernel the best counts."""
        task, kernel = choice
        record = Record(
            self.tasks[task].layer, str(self.target), self.threads, kernel, measurement.device, __version__,
            datetime.now(timezone.utc).isoformat(timespec="seconds"), measurement.seconds, measurement.error,
        )  # fmt: skip
        times = [t for t in (outcomes.get(choice), measurement.seconds) if t is not None]
        outcomes[choice] = min(times, default=None)
        self._held_back.append(record)
        if measurement.error is None:
            self._worked = True
        if self._worked:
            self.records.extend(self._held_back)
            self._held_back.clear()

    def _news(self, task: int, kernel: str, measurement: Measurement, trials: int) -> TrialDone:
        known = self.search.progress[task]
        times = [t for t in (measurement.seconds, known.best[1] if known.best else None) if t is not None]
        default = measurement.seconds if kernel == known.task.default else known.default_seconds
        return TrialDone(
            self.done, trials, str(known.task.spec), kernel, measurement.seconds, measurement.error, default,
            min(times, default=None),
        )  # fmt: skip

    def report(self) -> TuningReport:
        """What the database knows of the layers."""
        layers = []
        for task in self.tasks:
            key = (task.layer, str(self.target), self.threads)
            usable = {r.kernel: r for r in self.records.trials(key).values() if r.flexcomp == __version__}
            seconds = {name: r.seconds for name, r in usable.items() if r.seconds is not None}
            best = min(seconds, key=lambda name: (seconds[name], name), default=None)
            layers.append(
                TunedLayer(
                    str(task.spec), task.count, len(usable), task.default, seconds.get(task.default), best,
                    None if best is None else seconds[best],
                )
            )  # fmt: skip
        assert self.records.path is not None
        return TuningReport(self.records.path, self.done, self.failed, tuple(layers))

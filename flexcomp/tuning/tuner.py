"""`tune`: measure which kernels are fastest on a device, and note their times in a database that `build` reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import onnx
import tvm

from flexcomp.arguments import checked_milliseconds, checked_number, checked_path
from flexcomp.compiler import Given, Weights, declared_shapes, linker_for, require_linker, types_of
from flexcomp.device import CompileTarget, checked_threads, require_supported, resolve_target
from flexcomp.errors import InputError, TargetError, TuningError
from flexcomp.frontend import CustomOperator, checked_operators, checked_values, load_shapes
from flexcomp.profiling import Database, Record
from flexcomp.program import WeightsDigest
from flexcomp.renamed import Renamed, milliseconds, renamed
from flexcomp.schedules.decide import decide
from flexcomp.tuning.local import Devices, Measurement, ThisMachine
from flexcomp.tuning.report import TrialDone, TunedLayer, TuningReport
from flexcomp.tuning.rpc import Address, RemoteDevices, address_of
from flexcomp.tuning.search import Search
from flexcomp.tuning.tasks import Task, tasks_of
from flexcomp.tuning.trial import Trial, TrialLibrary, build_library, write_data
from flexcomp.tuning.workers import Workers, outcome
from flexcomp.version import __version__

Choice = tuple[int, str]  # task, kernel

_BATCH = 8
# Rounds of measurements at the end: of every default and best kernel, and again of those between which is to decide.
_ROUNDS = 3
_DECIDING_ROUNDS = 4


@renamed(timeout_s=Renamed("timeout_ms", milliseconds))
def tune(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    *,
    database: str | os.PathLike[str],
    trials: int = 200,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
    input_values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    address: str | None = None,
    tracker: str | None = None,
    key: str | None = None,
    wait_ms: float = 30_000,
    compiler: str | None = None,
    timeout_ms: float = 30_000,
    progress: Callable[[TrialDone], None] | None = None,
    weights: str | Mapping[str, str] | None = None,
    max_error: float | None = None,
    calibration: Given = None,
    custom_operators: Sequence[CustomOperator] | None = None,
) -> TuningReport:
    """Measure at most `trials` kernels of a network's layers and append every outcome to `database`.

    An existing database is continued: kernels with records are not measured again, except each layer's best and default kernels,
    in turns at the end.
    `address`, `tracker`, `key` and `wait_ms`: as for `flexcomp.remote.connect`; all devices of a tracker under `key` measure.
    Without an address and a tracker, kernels run on this machine.
    `timeout_ms`: a candidate that takes longer to build, or to measure, has failed.
    `weights`: give those of the build, because kernels for narrow weights differ from kernels for float32. Other arguments are
    those of `flexcomp.build`.

    Raises ModelError, UnsupportedModelError, TargetError, InputError, and TuningError if the database is broken or no device can
    measure.
    """
    kept = Weights(types=weights, max_error=max_error, calibration=calibration)
    declared = declared_shapes(input_shapes, shapes)
    operators, values = checked_operators(custom_operators), checked_values(input_values)
    trials = checked_number(trials, "trials", least=1)
    database = checked_path(database, "database")
    timeout_s = checked_milliseconds(timeout_ms, "timeout_ms") / 1e3
    devices = address_of(address, tracker, key, checked_milliseconds(wait_ms, "wait_ms") / 1e3)
    threads = checked_threads(threads)
    resolved = resolve_target(target)
    threads = threads or resolved.num_cores
    require_supported(resolved)
    if resolved.gpu:
        raise TargetError(f"kernels for GPUs ({resolved}) have no choices that could be tuned: build needs no database for them")
    require_linker(resolved, compiler)  # a missing compiler is no fault of the candidates
    if devices is not None:
        devices.count()  # before an import that takes minutes
    records = Database.open(database)
    unit = replace(resolved.vector_unit, threads=threads)
    networks = list(load_shapes(model, [shape.inputs for shape in declared], params, operators, values=values))
    types, _ = types_of(networks, kept, resolved, lambda phase, done, total: None, True, list(map(str, declared)))
    tasks = tasks_of(zip(networks, types, strict=True), unit)
    if not tasks:
        raise InputError("the network has no layer with a choice of kernels")
    linker_for(resolved, compiler)  # makes the runtime, once and not in every worker
    tuner = _Tuner(tasks, resolved, threads, records, compiler, timeout_s, progress)
    with tempfile.TemporaryDirectory(prefix="flexcomp-tune-") as folder:
        tuner.run(Path(folder), trials, devices)
    return tuner.report()


class _Tuner:
    def __init__(
        self,
        tasks: list[Task],
        target: CompileTarget,
        threads: int,
        records: Database,
        compiler: str | None,
        timeout_s: float,
        progress: Callable[[TrialDone], None] | None,
    ) -> None:
        self.tasks, self.target, self.threads = tasks, target, threads
        self.records, self.compiler, self.timeout_s = records, compiler, timeout_s
        self.search = Search(tasks, replace(target.vector_unit, threads=threads))
        self.progress = progress or (lambda news: None)
        self.done = self.failed = self.earlier = 0
        self._held_back: list[Record] = []  # failures while nothing has worked yet
        self._worked = False
        self._libraries: dict[Choice, TrialLibrary] = {}  # of default and best kernels, built in this run
        for index, task in enumerate(tasks):
            earlier = self._usable(task)
            self.search.known(index, {name: record.seconds for name, record in earlier.items()})
            self.earlier += len(earlier)

    def run(self, folder: Path, trials: int, address: Address | None) -> None:
        data = folder / "trial.weights"
        digest = write_data(data, [c for task in self.tasks for c in task.candidates.values()])
        with closing(self._devices(data, address)) as devices, closing(self._builders()) as builders:
            while self.done < trials:
                batch = self.search.propose(min(max(_BATCH, 2 * devices.count), trials - self.done))
                if not batch:
                    break
                self._batch(batch, trials, folder, digest, builders, devices)
            self._compare(folder, digest, builders, devices)

    def _devices(self, data: Path, address: Address | None) -> Devices:
        if address is not None:
            return RemoteDevices(address, data, self.threads, self.timeout_s)
        return ThisMachine(self.target, data, self.threads, self.timeout_s)

    def _builders(self) -> Workers:
        return Workers(len(os.sched_getaffinity(0)), self.timeout_s)

    def _batch(
        self, batch: list[Choice], trials: int, folder: Path, digest: WeightsDigest, builders: Workers, devices: Devices
    ) -> None:
        """Build and measure candidates, and tell the search."""
        outcomes: dict[Choice, float | None] = {}
        built = []
        for choice, library, error in self._built(batch, folder, digest, builders):
            if library is None:
                self._note(choice, Measurement("the builder", error=f"building: {error}"), outcomes, trials)
            else:
                built.append((choice, library))
        for index, measurement in devices.measure([library for _, library in built]):
            self._note(built[index][0], measurement, outcomes, trials)
        # A momentary disturbance seldom hits the same trial twice.
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

    def _compare(self, folder: Path, digest: WeightsDigest, builders: Workers, devices: Devices) -> None:
        """Measure the default and the best kernel of each layer in turns: a build chooses between these."""
        open_ones = [
            (task, name)
            for task, known in enumerate(self.search.progress)
            if known.best and known.best[0] != known.task.default and known.default_seconds is not None
            for name in (known.task.default, known.best[0])
        ]
        # Either may have been tried by an earlier run, in other circumstances.
        missing = [choice for choice in open_ones if choice not in self._libraries]
        self._libraries.update(
            (choice, library)
            for choice, library, _ in self._built(missing, folder, digest, builders)
            if library is not None
        )
        every = list(self._libraries)
        turns = [*every * _ROUNDS, *[choice for choice in open_ones if choice in self._libraries] * _DECIDING_ROUNDS]
        measured = devices.measure([self._libraries[choice] for choice in turns])
        for done, (index, measurement) in enumerate(measured, 1):
            self._keep(turns[index], measurement, {})
            self._tell("comparing", done, len(turns), turns[index], measurement)

    def _forget(self) -> None:
        """Delete the libraries of all but default and best kernels."""
        for task, kernel in list(self._libraries):
            known = self.search.progress[task]
            if kernel not in (known.task.default, known.best and known.best[0]):
                Path(self._libraries.pop((task, kernel)).path).unlink(missing_ok=True)

    def _note(self, choice: Choice, measurement: Measurement, outcomes: dict, trials: int) -> None:
        self.done += 1
        self.failed += measurement.error is not None
        self._keep(choice, measurement, outcomes)
        self._tell("trying", self.done, trials, choice, measurement)

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

    def _tell(self, stage: str, done: int, total: int, choice: Choice, measurement: Measurement) -> None:
        task, kernel = self.tasks[choice[0]], choice[1]
        seconds = self._seconds(task)
        self.progress(
            TrialDone(
                stage, done, total, self.earlier, str(task.spec), kernel, measurement.seconds, measurement.error,
                seconds.get(task.default), min(seconds.values(), default=None),
            )
        )  # fmt: skip

    def _usable(self, task: Task) -> dict[str, Record]:
        """Records in the database of the kernels of a layer."""
        found = self.records.trials((task.layer, str(self.target), self.threads))
        return {name: record for name, record in found.items() if record.flexcomp == __version__}

    def _seconds(self, task: Task) -> dict[str, float]:
        return {name: record.seconds for name, record in self._usable(task).items() if record.seconds is not None}

    def report(self) -> TuningReport:
        """The layers' results in the database."""
        layers = []
        for task in self.tasks:
            seconds = {name: time for name, time in self._seconds(task).items() if name in task.candidates}
            best = decide(seconds, task.default) if seconds else None
            layers.append(
                TunedLayer(
                    str(task.spec), task.count, len(self._usable(task)), task.default, seconds.get(task.default), best,
                    None if best is None else seconds[best],
                )
            )  # fmt: skip
        assert self.records.path is not None
        return TuningReport(self.records.path, self.done, self.failed, tuple(layers))

"""Runs a compiled network in a fresh process of the C++ runner, whose memory is the model's alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError, InputError
from flexcomp.files import beside, require_folder
from flexcomp.runtime.ports import TensorInfo, made_inputs
from flexcomp.runtime.trace import DeviceRates, Traces, read_traces

_USAGE = 2  # the runner's exit code


@dataclass(frozen=True)
class Emulator:
    """How to run another machine's programs on this one."""

    command: tuple[str, ...]  # for example ("qemu-aarch64", "-L", SYSROOT)
    runner: Path  # flexcomp-run for that machine


def run(
    library: str | Path,
    *,
    budget: int | str | None = None,
    threads: int | None = None,
    repeat: int = 1,
    warmup: int = 0,
    start: str = "cold",
    seed: int = 0,
    verify: bool = False,
    inputs: Mapping[str, str | Path] | None = None,
    output_dir: str | Path | None = None,
    prefix: Sequence[str] = (),
    trace: str | Path | None = None,
    read_bandwidth: float | None = None,
    direct: bool = True,
    compute_cpus: str | None = None,
    loader_cpu: str | None = None,
    affinity: bool = True,
    switches: int = 0,
    callers: int = 0,
    read_rate: int | None = None,
    device_rates: bool = False,
    weights: str | Path | None = None,
    reset_state: bool = False,
    emulator: Emulator | None = None,
) -> dict:
    """Run `library` and return the runner's report: latencies, memory, bytes read, stall time.

    `inputs` are .npy files by input name; without them the runner draws random ones from `seed`. `warmup` inferences go
    before the timed ones; `start="warm"` first loads the weights that stay in memory; `verify` checks every byte of the
    weights first, and again in each read. Outputs are written to `output_dir` as NAME.npy. `prefix` is a command that
    starts the runner, e.g. `taskset`. `trace` is a file for `flexcomp.runtime.trace.read_traces`; `read_bandwidth` imitates
    storage of so many bytes per second; `direct=False` reads through the page cache. `compute_cpus` and `loader_cpu` are lists
    of cores such as "4-7", instead of the big and the little ones; without `affinity` the system places all threads.
    `switches`: how often the budget is switched at random afterwards, with one inference each, or while `callers` threads
    run inferences; the report's "switches" and "concurrent" tell of it. `read_rate` measures the storage alone by reads of
    so many bytes; the report then has "read_bytes_per_s", and with `device_rates` the `DeviceRates` of a GPU. `weights`
    is the path of the weights file, if not next to the
    library. The network's state goes on from one inference to the next, or is cleared before each (`reset_state`).
    `emulator` runs a library built for another machine.
    "bytes_read", "stall_ms", "read_ms", "core_wait_ms", "prepared_bytes", "prepare_ms" and "help_ms" (None where not
    known) are medians over the timed inferences, as "median_ms" is; the keys with "_each" list them all. "start_ms" counts from
    here, before the process is started, to the open session, with "warm_ms" of a warm start; "first_ms" is the first inference,
    warm-up or not.
    Raises InputError for a wrong option or input name, otherwise ArtifactError with the runner's message.
    """
    if output_dir is not None:
        require_folder(output_dir)
    program = [*emulator.command, str(emulator.runner)] if emulator else [str(runtime_ext.runner())]
    command = [*prefix, *program, str(library), "--repeat", str(repeat), "--warmup", str(warmup)]
    if start != "cold":
        command += ["--start", start]
    if seed:
        command += ["--seed", str(seed)]
    if verify:
        command += ["--verify"]
    if reset_state:
        command += ["--reset-state"]
    if budget is not None:
        command += ["--budget", str(budget)]
    if threads is not None:
        command += ["--threads", str(threads)]
    for name, path in (inputs or {}).items():
        command += ["--input", f"{name}={path}"]
    if trace is not None:
        command += ["--trace", str(trace)]
    if read_bandwidth is not None:
        command += ["--read-bandwidth", repr(float(read_bandwidth))]
    if not direct:
        command += ["--no-direct"]
    if compute_cpus is not None:
        command += ["--compute-cpus", compute_cpus]
    if loader_cpu is not None:
        command += ["--loader-cpu", loader_cpu]
    if not affinity:
        command += ["--no-affinity"]
    if switches:
        command += ["--switch-budgets", str(switches), "--callers", str(callers)]
    if read_rate is not None:
        command += ["--read-rate", str(read_rate)]
    if device_rates:
        command += ["--device-rates"]
    if weights is not None:
        command += ["--weights", str(weights)]
    if output_dir is None:
        report = _report_of(command)
    else:
        with beside(Path(output_dir) / "outputs") as folder:
            report = _report_of([*command, "--output-dir", str(folder)])
            for file in folder.iterdir():
                file.replace(Path(output_dir) / file.name)
    for key in ("bytes_read", "stall_ms", "read_ms", "core_wait_ms", "prepared_bytes", "prepare_ms", "help_ms"):
        each = report[key]
        report |= {key: None if None in each else statistics.median_high(each), f"{key}_each": each}
    return report


def traces(library: str | Path, ports: Sequence[TensorInfo] = (), **options) -> Traces:
    """Traces of the timed inferences; `options` as of `run`. `ports` are the inputs of the shape that runs; none: the largest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        inputs = {port.name: Path(folder) / f"{number}.npy" for number, port in enumerate(ports)}
        for array, file in zip(made_inputs(ports), inputs.values(), strict=True):
            np.save(file, array)
        report = run(library, trace=path, **{"warmup": 2, "inputs": inputs, **options})
        inferences = zip(read_traces(path), report["core_wait_ms_each"], strict=True)
        return Traces(
            report["rung"], report["threads"], tuple(replace(trace, core_wait_ms=waited) for trace, waited in inferences)
        )


def rates(library: str | Path) -> DeviceRates:
    """Costs of the GPU besides the kernels of a library. Raises InputError for a library for CPUs, ArtifactError."""
    return DeviceRates(**run(library, budget="min", device_rates=True)["device_rates"])


def _report_of(command: Sequence[str]) -> dict:
    """The report that the runner prints. Raises InputError or ArtifactError."""
    command = [*command, "--started", str(time.monotonic_ns())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"the runner ended with code {done.returncode}"]
        kind = InputError if done.returncode == _USAGE else ArtifactError
        raise kind(reason[0].removeprefix("error: "))
    return json.loads(done.stdout)


def output_file(folder: str | Path, name: str) -> Path:
    """Where the runner writes the output `name`."""
    return Path(folder) / f"{name.replace('/', '_')}.npy"


def _environment() -> dict[str, str]:
    """This process's environment with libtvm_ffi on the search path."""
    folder = Path(find_spec("tvm_ffi").submodule_search_locations[0]) / "lib"
    path = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{path}" if path else str(folder)}

"""Processor time and memory of builds: does each end soon, in little more memory than its weights?

    nice python -m benchmarks.lab.built [NETWORK, GROUP or FILE.onnx …]

NETWORK and GROUP are of `benchmarks.models` (default: all). Each is built by `flexcomp build` in a process of its own, for one
thread, without kernels of earlier builds. Reported are the time of all its processes, user and system, and the largest sum
of their memory, shared pages counted once; so the table is the same on a busy machine. The exit status is 1 if a build fails,
takes more than 120 seconds, or needs more than 1.2 times the bytes of its model and 2 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import models
from benchmarks.results import Results, Table, json_option

MOST_S = 120.0
MOST_TIMES, MOST_BYTES = 1.2, 2_000_000_000
_EVERY_S = 0.5  # between two looks at the memory
COLUMNS = {"network": "", "model, MB": ",.0f", "processor, s": ".1f", "memory, MB": ",.0f", "note": ""}


@dataclass(frozen=True)
class Cost:
    """Resources of a command, with all processes that it started."""

    seconds: float
    nbytes: int
    status: int
    said: str  # the last line on stderr

    def excess(self, model_nbytes: int) -> list[str]:
        """The exceeded bounds of a build."""
        over = [f"above {MOST_S:.0f} s"] if self.seconds > MOST_S else []
        most = MOST_TIMES * model_nbytes + MOST_BYTES
        return over + ([f"above {most / 1e6:,.0f} MB"] if self.nbytes > most else [])


def cost_of(command: Sequence[str]) -> Cost:
    """Run a command to its end."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        nbytes = 0
        while True:
            nbytes = max(nbytes, _tree_nbytes(process.pid))
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            time.sleep(_EVERY_S)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().splitlines()
    peak = max(nbytes, usage.ru_maxrss * 1024)  # of the largest process, which no look misses
    return Cost(usage.ru_utime + usage.ru_stime, peak, process.returncode, lines[-1] if lines else "")


def _tree_nbytes(process: int) -> int:
    """Bytes of a process and its descendants; a page of several counts once."""
    total = 0
    with suppress(OSError):  # the process ended
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        total = sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(map(_tree_nbytes, map(int, (task / "children").read_text().split())))
    return total


def built(name: str, folder: Path) -> tuple[int, Cost]:
    """Bytes of a model, and the resources of its build. Raises SystemExit if the model cannot be made."""
    path, shapes = folder / "model.onnx", []
    if name in models.NAMES:
        make = [sys.executable, "-m", "benchmarks.models", name, "-o", str(path)]  # its memory is not ours
        subprocess.run(make, check=True)
        given = models.trained.TRAINED[name].shapes if name in models.trained.TRAINED else {}
        shapes = [f"--input={key}:{','.join(map(str, shape))}" for key, shape in (given or {}).items()]
    else:
        path = Path(name)
    beside = [path.with_name(path.name + suffix) for suffix in ("", ".data")]
    size = sum(file.stat().st_size for file in beside if file.exists())
    options = ["--threads", "1", "--no-cache", "--no-probe", *shapes]
    flexcomp = [sys.executable, "-m", "flexcomp"]
    return size, cost_of([*flexcomp, "build", str(path), "-o", str(folder / "built.so"), *options])


def main() -> int:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK, GROUP or FILE.onnx")
    json_option(parser, "built")
    args = parser.parse_args()
    names = [name for given in args.names for name in models.GROUPS.get(given, (given,))] or [*models.NAMES]
    if strange := [name for name in names if name not in models.NAMES and not Path(name).is_file()]:
        parser.error(f"no network {strange[0]!r}; there are {', '.join(sorted(models.NAMES))}")
    results, table, failed = Results.begin("benchmarks.lab.built"), Table(COLUMNS), 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            size, cost = built(name, Path(folder))
        notes = [cost.said] if cost.status else cost.excess(size)
        failed += bool(notes)
        table.add(Path(name).name, size / 1e6, cost.seconds, cost.nbytes / 1e6, "; ".join(notes))
    results.write(args.json, [table])
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

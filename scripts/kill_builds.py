"""Builds that are killed at random moments leave nothing that matters: the next one gives the right bytes.

    python -m scripts.kill_builds [NETWORK] [--kills 20] [--seed 0] [--budget 10%]

NETWORK is an .onnx file, or a name of `benchmarks/models.py`. It is built without a cache, timed. Then `flexcomp build` is ended
after a random part of that time, again and again, all with one cache and one output folder: by SIGTERM, by SIGKILL of
the process that compiles (which is what happens where memory runs out), or by SIGKILL of all its processes at once. Each
time no process is left, and, if anything of it was still there to remove them, no file but a whole artifact and the cache's
entries. At last a build in the same folder gives the same bytes as the first one. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import onnx
import psutil

from benchmarks import models
from flexcomp.cache import KernelCache

_PATIENCE_S = 10.0  # for processes to end


def main() -> int:
    """Build, kill, look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="?", default="squeezenet1_1", help="an .onnx file, or a name")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", default="10%")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-builds-") as folder:
        return kill_builds(Path(folder), args.network, args.kills, args.seed, args.budget)


def kill_builds(folder: Path, name: str, kills: int, seed: int, budget: str) -> int:
    """The exit status."""
    command = [sys.executable, "-m", "flexcomp", "build", name, "--budget", budget, "--threads", "1"]
    if not name.endswith(".onnx"):
        network = models.load(name)
        command[4] = str(folder / f"{name}.onnx")
        onnx.save(network.model, command[4])
        shapes = [f"{key}:{','.join(map(str, shape))}" for key, shape in (network.input_shapes or {}).items()]
        command += [part for shape in shapes for part in ("--input", shape)]
    build = Build(command, folder)

    started = time.monotonic()
    wanted = build.finish("--no-cache")
    whole_s = time.monotonic() - started
    print(f"{name}: built in {whole_s:.1f} s", flush=True)
    chance = random.Random(seed)
    wrong: list[str] = []
    for number in range(kills):
        seconds, way = chance.uniform(0, whole_s), chance.choice(_WAYS)
        moment = f"{way} after {seconds:.2f} s"
        processes = build.kill(seconds, way)
        files = build.others()
        print(f"{number + 1:3d} {moment}: {len(processes)} processes and {len(files)} files are left", flush=True)
        if processes:
            wrong.append(f"{moment}: processes {', '.join(map(str, processes))} are left")
        if files and way != _ALL:  # of which nobody was left to remove them
            wrong.append(f"{moment}: left are {', '.join(files)}")
        build.tidy()
    entries, nbytes = KernelCache(folder / "cache" / "kernels").size()
    print(f"the cache has {entries} kernels ({nbytes / 1e6:.1f} MB)")
    for turn in ("first", "second"):
        if build.finish() != wanted:
            wrong.append(f"the {turn} build after them gives other bytes")
    if files := build.others():
        wrong.append(f"left are {', '.join(files)}")
    print("\n".join(wrong) if wrong else f"{kills} kills, then the same bytes")
    return int(bool(wrong))


_ALL = "all killed"
_WAYS = ("terminated", "compiler killed", _ALL)
_NAME = "built"  # of every library: it is a part of it
_ARTIFACTS = {f"out/{_NAME}.{kind}" for kind in ("so", "weights")}


class Build:
    """`flexcomp build` with a cache, an output folder and a folder for temporary files of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder
        for name in ("out", "tmp"):
            (folder / name).mkdir()
        own = {"FLEXCOMP_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "FLEXCOMP_PROBE": "0"}
        self._environment = os.environ | own

    def finish(self, *options: str) -> tuple[bytes, ...]:
        """What a build that nobody disturbs writes."""
        if self._start(*options, stderr=subprocess.DEVNULL).wait():
            raise SystemExit(f"the build of {self._command[4]} failed: try it by itself")
        return tuple((self._folder / "out" / f"{_NAME}.{kind}").read_bytes() for kind in ("so", "weights"))

    def kill(self, seconds: float, way: str) -> list[int]:
        """The processes that are left of a build that is ended after so many seconds, in one of `_WAYS`."""
        process = self._start(stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        # Whoever has ended is waited for by the first one, or by us.
        started = psutil.Process(process.pid).children(recursive=True)
        if way == "terminated":
            process.terminate()
        elif way == _ALL:
            os.killpg(process.pid, signal.SIGKILL)
        elif started:
            with suppress(psutil.NoSuchProcess):
                started[0].kill()
        process.wait()
        _, left = psutil.wait_procs(started, _PATIENCE_S)
        return [one.pid for one in left]

    def others(self) -> list[str]:
        """The files in its folders that are neither an artifact's nor entries of the cache."""
        found = []
        for name in ("out", "tmp", "cache"):
            for path in sorted((self._folder / name).rglob("*")):
                is_entry = path.parent.name == "kernels" and path.suffix == ".o" and not path.name.startswith(".")
                is_count = path.name == "kernels-added"  # of what was kept, for the cache
                if path.is_file() and not is_entry and not is_count:
                    found.append(str(path.relative_to(self._folder)))
        return sorted(set(found) - _ARTIFACTS)

    def tidy(self) -> None:
        """Remove what nobody was left to remove, so that it is told from what the next one leaves."""
        for name in self.others():
            if not name.startswith("cache"):
                (self._folder / name).unlink()

    def _start(self, *options: str, stderr: int | None = None) -> subprocess.Popen:
        command = [*self._command, "-o", str(self._folder / "out" / f"{_NAME}.so"), *options]
        return subprocess.Popen(
            command, env=self._environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=stderr
        )


if __name__ == "__main__":
    raise SystemExit(main())

"""Run the fuzzer of models: `python -m tests.fuzz.models.run --seconds 600 --jobs 2`.

Graphs go in chunks to processes that are forked for them. Where one dies or hangs, the graphs that it was at are done again
one by one, to learn which it was, and another process does the rest of its chunk. Prints how many graphs came to which outcome,
and ends with 1 if any was wrong or crashed; these are then in build/fuzz/found/models. `--only N` does one graph again,
`--show N` prints it.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

os.environ.setdefault("FLEXCOMP_PROBE", "0")

import onnx

from tests.fuzz.models import oracle
from tests.fuzz.models.judge import BAD, Verdict, all_cases_once, judge, subject

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "build" / "fuzz" / "node_tests.fields"
FOUND = ROOT / "build" / "fuzz" / "found" / "models"
CHUNK = 256
MEMORY = 12 << 30  # bytes of address space
LIMIT_S = 60.0  # of processor time, between two notes; of a graph that is done alone a third


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--graphs", type=int, default=10**9, help="end after so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--only", type=int, nargs="*", help="do these graphs alone, and say what became of them")
    parser.add_argument("--show", type=int, help="print a graph")
    parser.add_argument("--log", type=Path, help="append every verdict that is not right to this file, as JSON lines")
    args = parser.parse_args()
    if args.show is not None:
        print(onnx.printer.to_text(subject(args.seed, args.show, KEPT).model))
        return 0
    all_cases_once(KEPT)
    if args.only:
        verdicts = _alone(args.seed, args.only)
        for verdict in verdicts:
            print(f"{verdict.index}: {verdict.outcome}: {verdict.reason}")
        return int(any(v.outcome in BAD for v in verdicts))
    print(f"models: seed {args.seed}", flush=True)
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    began, processor = time.monotonic(), _processor_s()
    counts: collections.Counter = collections.Counter()
    following = args.first
    running: list[_Chunk] = []
    rests: list[list[int]] = []  # of chunks whose process died
    bad = []
    while True:
        over = time.monotonic() - began > args.seconds or following - args.first >= args.graphs
        while len(running) < args.jobs and (rests or not over):
            if not rests:
                rests.append(list(range(following, following + CHUNK)))
                following += CHUNK
            running.append(_Chunk(args.seed, rests.pop(), alone=False))
        if not running:
            break
        time.sleep(0.05)
        for chunk in [c for c in running if c.ended()]:
            running.remove(chunk)
            verdicts = chunk.verdicts()
            left = sorted(set(chunk.indices) - {v.index for v in verdicts})
            if left:
                suspects = chunk.last()[0]
                verdicts += _alone(args.seed, suspects)
                if rest := [index for index in left if index not in suspects]:
                    rests.append(rest)
            for verdict in verdicts:
                counts[verdict.outcome] += 1
                if verdict.outcome in BAD:
                    bad.append(verdict)
                    _keep(args.seed, verdict)
            if args.log:
                with open(args.log, "a") as log:
                    log.writelines(json.dumps(vars(v)) + "\n" for v in verdicts if v.outcome != "right")
    total, minutes = sum(counts.values()), (_processor_s() - processor) / 60
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    print(f"models: {total:,} graphs, {total / max(minutes, 1e-9):,.0f} per minute of a processor: {listed}")
    return int(bool(bad))


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _keep(seed: int, verdict: Verdict) -> None:
    FOUND.mkdir(parents=True, exist_ok=True)
    print(f"models: graph {verdict.index} of seed {seed}: {verdict.outcome}: {verdict.reason}", flush=True)
    pid = os.fork()
    if not pid:  # where drawing it ends the process, that is this one
        try:
            (FOUND / f"{seed}-{verdict.index}.onnx").write_bytes(subject(seed, verdict.index, KEPT).model.SerializeToString())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _alone(seed: int, indices: Iterable[int], oracles: Sequence[str] = oracle.ALL) -> list[Verdict]:
    """Graph by graph, each built for itself; one at which a process ends, or hangs, has crashed.

    Where an oracle ends the process, the others are asked without it.
    """
    left, verdicts = list(indices), []
    while left:
        chunk = _Chunk(seed, left, alone=True, oracles=oracles)
        while not chunk.ended():
            time.sleep(0.02)
        verdicts += chunk.verdicts()
        done = {v.index for v in verdicts}
        left = [index for index in left if index not in done]
        if left:
            (at,), doing = chunk.last()
            if doing in oracles:
                verdicts += _alone(seed, [at], [name for name in oracles if name != doing])
            else:
                verdicts.append(Verdict(at, "crashed", f"the process ended while it did: {doing} ({chunk.how()})"))
            left.remove(at)
    return verdicts


class _Chunk:
    """A process that judges graphs, and tells of each through a file."""

    def __init__(self, seed: int, indices: Sequence[int], alone: bool, oracles: Sequence[str] = oracle.ALL) -> None:
        self.indices, self.alone, self.oracles = list(indices), alone, oracles
        self.folder = ROOT / "build" / "fuzz" / "running"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{os.getpid()}-{self.indices[0]}-{int(alone)}"
        self.path.write_text("")
        self.status: int | None = None
        self.is_stuck = False
        self._size, self._since = 0, 0.0
        self.pid = os.fork()
        if not self.pid:
            self._serve(seed)

    def _serve(self, seed: int) -> None:
        """In the forked process; does not return."""
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            gc.disable()  # a seventh of the time; the process ends before cycles fill the memory
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

            def tell(message: dict) -> None:
                os.write(file, (json.dumps(message) + "\n").encode())

            def note(indices: Sequence[int], doing: str) -> None:
                tell({"at": indices, "doing": doing})

            # One by one, so that what a process has said stays said when it dies.
            for part in [[i] for i in self.indices] if self.alone else [self.indices]:
                for verdict in judge(seed, part, KEPT, note, self.alone, self.oracles):
                    tell(vars(verdict))
        except BaseException:
            self.path.with_suffix(".error").write_text(traceback.format_exc())  # the fuzzer's own fault
            os._exit(3)
        os._exit(0)

    def ended(self) -> bool:
        """Whether it has; a process that says nothing for too long is ended here."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                return True
            self._end_if_stuck()
            return False
        return True

    def _end_if_stuck(self) -> None:
        size, used = self.path.stat().st_size, _used_s(self.pid)
        if size != self._size:
            self._size, self._since = size, used
        if used - self._since > LIMIT_S * (1 if not self.alone else 0.5):
            self.is_stuck = True
            os.kill(self.pid, signal.SIGKILL)

    def verdicts(self) -> list[Verdict]:
        return [Verdict(**m) for m in self._messages() if "outcome" in m]

    def last(self) -> tuple[list[int], str]:
        """The graphs that it was at and has not told of, and what it did."""
        messages = self._messages()
        done = {m["index"] for m in messages if "outcome" in m}
        notes = [m for m in messages if "at" in m]
        at, doing = (notes[-1]["at"], notes[-1]["doing"]) if notes else ([], "start")
        left = [index for index in self.indices if index not in done]
        return [index for index in at if index not in done] or left[:1], doing

    def how(self) -> str:
        if self.is_stuck:
            return "it took too long"
        return f"signal {os.WTERMSIG(self.status)}" if os.WIFSIGNALED(self.status) else f"code {os.WEXITSTATUS(self.status)}"

    def _messages(self) -> list[dict]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


def _used_s(pid: int) -> float:
    """Processor time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())

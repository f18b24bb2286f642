"""Latency compared with another checkout of flexcomp, as `git worktree` makes one: does a change cost anything?

    python -m benchmarks.lab.versus OTHER build DIR [NETWORK …]
    python -m benchmarks.lab.versus OTHER measure DIR [NETWORK …] [--budgets 100,25,10,0] [--rounds 40]

OTHER is a checkout with a `.venv` of its own (`make test` there makes one). `build` builds each network with both; `measure`,
which wants a quiet machine, opens both libraries in processes of their own, each with its checkout's runtime, and lets
them take turns within the second, a few inferences each; who begins changes from turn to turn. Budgets are in percent of
everything resident, and both get the same bytes: those of the library that needs more, so 0 is the smallest budget in which
both run. Reported is the median over turns of the ratio, this checkout over the other, with quartiles, and the largest
difference of outputs. The exit status is 1 if the median over all networks and budgets exceeds `--limit`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import Results, Table, json_option

HERE = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("versus_worker.py")
NETWORKS = ("mobilenet_v2", "squeezenet1_1", "resnet152", "gpt2", "vit_b16", "vgg19_torch")
TURN_S = 0.15  # of inferences in a row


class Contender:
    """A process with a checkout's runtime and one of its libraries open."""

    def __init__(self, checkout: Path, library: Path, bandwidth: float | None) -> None:
        self.process = subprocess.Popen(
            [checkout / ".venv/bin/python", WORKER, library, str(bandwidth or 0)],
            cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.sizes = self._answer()
        self.ready: dict = {}

    def prepare(self, nbytes: int) -> None:
        """Run once in so much memory."""
        print(nbytes, file=self.process.stdin, flush=True)
        self.ready = self._answer()

    def take(self, inferences: int) -> float:
        """Median milliseconds of so many inferences."""
        print(inferences, file=self.process.stdin, flush=True)
        return self._answer()["median_ms"]

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self.process.args))} ended with status {self.process.wait()}")
        return json.loads(line)


def budget_in_bytes(percent: float, sizes: Sequence[Mapping[str, int]]) -> int:
    """Budgets that each of the libraries of these sizes can have, at least that of the larger one."""
    return max(max(one["smallest"], round(percent / 100 * one["resident"])) for one in sizes)


def build(checkout: Path, folder: Path, names: list[str]) -> None:
    """Build networks with the flexcomp of a checkout, by its own interpreter."""
    code = (
        "import sys; import flexcomp; from benchmarks import models\n"
        "for name in sys.argv[2:]:\n"
        "    network = models.load(name)\n"
        "    built = flexcomp.build(network.model, input_shapes=network.input_shapes, threads=1, budget=0.1)\n"
        "    built.export_library(f'{sys.argv[1]}/{name}.so')\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([checkout / ".venv/bin/python", "-c", code, folder, *names], cwd=checkout, check=True)


def measure(other: Path, folder: Path, name: str, percent: float, rounds: int, bandwidth: float | None) -> tuple:
    """The median ratio of one network in one budget."""
    mine = Contender(HERE, folder / "this" / f"{name}.so", bandwidth)
    theirs = Contender(other, folder / "other" / f"{name}.so", bandwidth)
    nbytes = budget_in_bytes(percent, (mine.sizes, theirs.sizes))
    outputs = []
    for contender in (mine, theirs):
        contender.prepare(nbytes)
        with np.load(contender.ready["outputs"]) as file:
            outputs.append(dict(file))
        Path(contender.ready["outputs"]).unlink()
    difference = max(float(np.max(np.abs(outputs[0][key] - outputs[1][key]))) for key in outputs[0])
    inferences = max(1, round(TURN_S * 1e3 / max(theirs.take(2), mine.take(2))))
    ratios, latencies = [], []
    for turn in range(rounds):
        pair = (mine, theirs) if turn % 2 else (theirs, mine)
        taken = {contender: contender.take(inferences) for contender in pair}
        ratios.append(taken[mine] / taken[theirs])
        latencies.append(taken[theirs])
    mine.close()
    theirs.close()
    low, middle, high = statistics.quantiles(ratios, n=4)
    read = (contender.ready["bytes_read"] / 1e6 for contender in (mine, theirs))
    return name, percent, nbytes / 2**20, statistics.median(latencies), middle, low, high, *read, difference


COLUMNS = {
    "network": "", "budget, %": "g", "MiB": ".2f", "other, ms": ".2f", "ratio": ".3f", "lower quartile": ".3f",
    "upper quartile": ".3f", "MB read": ".1f", "by the other": ".1f", "outputs differ by": ".1e",
}  # fmt: skip


def main() -> int:
    """Build or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("action", choices=("build", "measure"))
    parser.add_argument("dir", type=Path, help="where libraries lie, on the storage to measure")
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=list(NETWORKS))
    parser.add_argument("--budgets", default="100,10", help="in percent of everything resident; 0: the smallest")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--read-bandwidth", type=float, help="imitate storage of so many bytes per second")
    json_option(parser, "versus")
    parser.add_argument("--limit", type=float, default=1.01)
    args = parser.parse_args()
    other, folder = args.other.resolve(), args.dir.resolve()
    if args.action == "build":
        build(other, folder / "other", args.names)
        build(HERE, folder / "this", args.names)
        return 0
    written, table = Results.begin("benchmarks.lab.versus"), Table(COLUMNS)
    for name in args.names:
        for percent in map(float, args.budgets.split(",")):
            table.add(*measure(other, folder, name, percent, args.rounds, args.read_bandwidth))
    written.write(args.json, [table])
    ratios = [row[4] for row in table.rows]
    print(f"in the median {statistics.median(ratios):.3f}, at most {max(ratios):.3f}")
    return int(statistics.median(ratios) > args.limit)


if __name__ == "__main__":
    sys.exit(main())

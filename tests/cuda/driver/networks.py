"""Thirteen networks from ONNX to outputs on the GPU of tests, against ONNX Runtime: a table, exit status 1 where one is wrong.

    python -m tests.cuda.driver.networks [NETWORK …] [--integrated]

Each is built as for a real GPU and run by the runtime, under three budgets and with three orders in which threads run and
streams come late; twice each time, since the second inference finds weights that stayed and loads ahead. Networks are those of
`tests.cuda.reduced`. This takes most of an hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.networks.architectures import example_input
from flexcomp.demo import compare
from tests.cuda.driver.fake import Fake, build
from tests.cuda.driver.toolkit import build as build_network
from tests.cuda.reduced import NETWORKS

SEEDS = (1, 2, 3)
PIECE = 2 << 20  # of device memory, as from GPUs
# A GPU with memory of its own, and one whose memory is the CPU's.
DISCRETE = {"architecture": 80, "granularity": PIECE}
INTEGRATED = {"architecture": 87, "granularity": 4096, "integrated": 1}
_MEMORY_NBYTES = 4 << 30


@dataclass(frozen=True)
class Outcome:
    """Of two inferences."""

    budget: str
    seed: int
    error: float  # the larger one, as a part of the largest output
    peak_nbytes: int  # of device memory
    budget_nbytes: int
    read_nbytes: int  # in the second inference

    @property
    def is_right(self) -> bool:
        return self.error <= compare.TOLERANCE and self.peak_nbytes <= self.budget_nbytes


def outcomes(
    fake: Fake, library: Path, inputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], gpu: Mapping[str, int]
) -> Iterator[Outcome]:
    """A built network under all budgets and with all seeds."""
    fake.set(nbytes=_MEMORY_NBYTES, **gpu)
    with flexcomp.load(library, "min") as session:
        ladder = [rung.budget_bytes for rung in session.ladder]
    for name, budget in {"min": ladder[0], "middle": ladder[len(ladder) // 2], "all": ladder[-1]}.items():
        for seed in SEEDS:
            fake.set(seed=seed, compute_delay_us=50, copy_delay_us=50, nbytes=_MEMORY_NBYTES, **gpu)
            with flexcomp.load(library, budget) as session:
                error = max(compare.relative_error(session.run(inputs), expected) for _ in range(2))
                stats = session.stats()
            yield Outcome(name, seed, error, fake.peak, stats["budget_bytes"], stats["bytes_read"])


def main() -> None:
    """Print a line for each network, budget and seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--integrated", action="store_true", help="on a GPU whose memory is the CPU's")
    args = parser.parse_args()
    gpu = INTEGRATED if args.integrated else DISCRETE
    print("network        budget seed    error peak device bytes budget, bytes read, bytes")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(build(Path(folder)))
        for name in args.networks:
            model = NETWORKS[name]()
            inputs = example_input(model)
            expected = compare.reference(model, inputs)
            start = time.monotonic()
            library = build_network(model, f"cuda -arch=sm_{gpu['architecture']}", Path(folder) / f"{name}.so")
            del model
            built = time.monotonic()
            for one in outcomes(fake, library, inputs, expected, gpu):
                numbers = f"{one.error:8.1e} {one.peak_nbytes:17,} {one.budget_nbytes:13,} {one.read_nbytes:11,}"
                print(f"{name:<14} {one.budget:>6} {one.seed:>4} {numbers}{'' if one.is_right else '  WRONG'}", flush=True)
                wrong += not one.is_right
            print(f"{name}: built in {built - start:.0f} s, run in {time.monotonic() - built:.0f} s", flush=True)
            library.with_suffix(".weights").unlink()
    if fake.fault or fake.live:
        raise SystemExit(f"{fake.fault} {fake.live}")
    print(f"{wrong} are wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

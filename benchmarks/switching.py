"""How long a change of the budget takes while inferences run, and whether memory and outputs are right meanwhile.

    python -m benchmarks.switching mobilenet_v2 resnet50_v15 [--switches 2000] [--callers 3] [--read-bandwidth 257e6]
    python -m benchmarks.switching resnet50.so

A switch goes to a random rung of the ladder, after a random pause of up to one and a half inferences; callers run
inferences all the while and compare every output with that of an undisturbed one. Counted is the time from the call of
`set_budget` to its return, on the thread that calls it: when the budget shrinks, this is when the memory has been given
back. Bytes that the next inference loads for the new rung are not part of it. Resident memory is read right after the
return, over what the process takes without an arena. The exit status is 1 if an output is wrong, memory exceeds the
rung by more than `RSS_LIMIT`, or a switch takes longer than `LIMIT_MS`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks import models
from flexcomp.runtime import runner

LIMIT_MS = 10.0  # for storage from 250 MB/s on: a read in progress is waited for
RSS_LIMIT = 4 << 20  # bytes


@dataclass(frozen=True)
class Result:
    """One network's switches."""

    network: str
    median_ms: float
    percentile_ms: float  # 99th
    worst_ms: float
    slow: int  # switches that took longer than LIMIT_MS
    smaller_ms: float  # median of those to a smaller budget than the one before
    rss_over_rung: int  # bytes, the most
    inferences: int
    restarts: int
    wrong: int

    @property
    def good(self) -> bool:
        """Whether all limits are kept."""
        return self.wrong == 0 and self.rss_over_rung <= RSS_LIMIT and self.worst_ms <= LIMIT_MS

    def __str__(self) -> str:
        return (
            f"| {self.network} | {self.median_ms:.3f} | {self.smaller_ms:.3f} | {self.percentile_ms:.2f} | "
            f"{self.worst_ms:.2f} | {self.slow} | {self.rss_over_rung / 2**20:+.2f} | {self.inferences} | "
            f"{self.restarts} | {self.wrong} |"
        )


HEADER = """\
| network | median, ms | shrinking, ms | 99 %, ms | worst, ms | over 10 ms | RSS over rung, MiB | inferences | restarts | wrong |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def measure(library: Path, switches: int, **options) -> Result:
    """Switch the budgets of a library; `options` as of `runner.run`."""
    report = runner.run(library, repeat=10, warmup=2, switches=switches, **options)
    done, idle = report["switches"], report["idle_rss_bytes"]
    times = np.array([switch["switch_ms"] for switch in done])
    budgets = np.array([report["budget_bytes"], *(switch["budget_bytes"] for switch in done)])
    concurrent = report["concurrent"]
    return Result(
        library.stem,
        float(np.median(times)),
        float(np.percentile(times, 99)),
        float(times.max()),
        int((times > LIMIT_MS).sum()),
        float(np.median(times[np.diff(budgets) < 0])),
        max(switch["rss_bytes"] - idle - switch["arena_bytes"] for switch in done),
        concurrent["runs"],
        concurrent["restarts"],
        concurrent["wrong"],
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="of benchmarks.models, or a library")
    parser.add_argument("--switches", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=3, help="threads that run inferences")
    parser.add_argument("--threads", type=int, default=None, help="compute threads")
    parser.add_argument("--read-bandwidth", type=float, default=None, help="imitate storage of so many bytes per second")
    arguments = parser.parse_args()
    good = True
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.networks:
            library = Path(name)
            if library.suffix != ".so":
                network, library = models.load(name), Path(folder) / f"{name}.so"
                built = flexcomp.build(network.model, input_shapes=network.input_shapes, threads=arguments.threads)
                built.export_library(library)
            result = measure(
                library,
                arguments.switches,
                callers=arguments.callers,
                threads=arguments.threads,
                read_bandwidth=arguments.read_bandwidth,
            )
            print(result, flush=True)
            good &= result.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""How much slower budgets run than plans made for exactly them, because rungs lie apart: by the simulator.

    python -m benchmarks.ladder_gaps squeezenet mobilenet_v2 resnet50 [--budgets 200] [--bandwidth 718e6] [--seed 0]

Budgets are drawn evenly on a logarithmic scale between the smallest and everything resident. A line for each network: rungs, the
bytes of the program that they take, how many times the steps of the next one a rung needs at most, seconds of this process's core
for planning them, and of latency over that of a plan made for the budget the median, the worst, and how many are above 1.03.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise

import numpy as np

from benchmarks import models
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.rungs import Offers

ALLOWED = 1.03


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=models.NAMES, metavar="network")
    parser.add_argument("--budgets", type=int, default=200)
    parser.add_argument("--bandwidth", type=float, help="of the storage, bytes per second; default: the default profile's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("network            rungs     bytes  steps  planning  median   worst  above  worst at, MiB")
    for name in args.networks:
        network = models.load(name)
        planning = prepare(network.model, input_shapes=network.input_shapes).planning
        if args.bandwidth:
            planning = planning.on(replace(planning.costs.storage, bandwidth=args.bandwidth))
        begin = time.process_time()
        rungs = Offers(planning).ladder(())
        seconds = time.process_time() - begin
        nbytes = sum(32 * len(one.plan.steps) + 40 * len(one.plan.segments) + 8 * len(planning.network.values) for one in rungs)
        steps = max((len(one.plan.steps) / len(other.plan.steps) for one, other in pairwise(rungs)), default=1.0)
        edges = [one.plan.budget for one in rungs]
        drawn = edges[0] * (edges[-1] / edges[0]) ** np.random.default_rng(args.seed).random(args.budgets)
        ratios = {}
        for budget in map(int, drawn):
            (exact,) = Offers(planning).ladder((), budgets=[budget])
            ratios[budget] = rungs[bisect_right(edges, budget) - 1].latency / exact.latency
        worst = max(ratios, key=lambda budget: ratios[budget])
        above = sum(ratio > ALLOWED for ratio in ratios.values())
        median = np.median(list(ratios.values()))
        print(
            f"{name:17} {len(rungs):6} {nbytes:9,} {steps:6.2f} {seconds:7.2f} s {median:7.3f} {ratios[worst]:7.3f} {above:6} "
            f"{worst / 2**20:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""How long planning takes: every rung of networks, from the lowered graph on.

    python -m benchmarks.planning squeezenet resnet50 [--bandwidth 718e6] [--in-python]

Times are of this process's core, not of the clock, so that other processes hardly matter. `--in-python` runs the planner's
inner loops in the Python that says what they do: the last column, a checksum of all rungs, must stay the same.
"""

from __future__ import annotations

import argparse
import time
import zlib
from contextlib import nullcontext
from dataclasses import replace

from benchmarks import models
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.rungs import plan_rungs
from flexcomp.plan.loops import readable
from flexcomp.runtime.budget import parse_budget


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=models.NAMES, metavar="network")
    parser.add_argument("--bandwidth", type=float, help="of the storage, bytes per second; default: the default profile's")
    parser.add_argument("--in-python", action="store_true")
    args = parser.parse_args()
    print("network            layers  rungs  planning  checksum")
    for name in args.networks:
        network = models.load(name)
        planning = prepare(network.model, input_shapes=network.input_shapes).planning
        if args.bandwidth:
            planning = planning.on(replace(planning.costs.storage, bandwidth=args.bandwidth))
        begin = time.process_time()
        with readable() if args.in_python else nullcontext():
            rungs = plan_rungs(planning, parse_budget(None), "best", lambda done, total: None)
        seconds = time.process_time() - begin
        checksum = zlib.crc32(repr(rungs).encode())
        print(f"{name:17} {len(planning.whole[0].layers):7} {len(rungs):6} {seconds:7.2f} s  {checksum:08x}", flush=True)


if __name__ == "__main__":
    main()

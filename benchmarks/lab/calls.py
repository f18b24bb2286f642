"""The cost of an inference through the C interface, compared with the functions of the library itself, as Python calls them.

    python -m benchmarks.lab.calls [LIBRARY] [--budget all] [--times 20000] [--rounds 15]

Without a library, of a product of 16 numbers with a matrix, which takes hardly longer than the call. One thread runs rounds by
both in turns, with inputs and outputs in the session's memory; medians of rounds. The exit status is 1 if the interface takes
more than 5 µs longer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm_ffi

import flexcomp
from benchmarks.networks.graph import Graph
from benchmarks.results import Results, Table, json_option
from flexcomp import runtime_ext
from flexcomp.runtime import read_summary, resolve_in

_MORE_US = 5.0
COLUMNS = {"loop": "", "µs": ".2f", "µs of the processor": ".2f"}


def program(folder: Path) -> Path:
    """`calls.cc`, compiled."""
    ffi, path, library = Path(tvm_ffi.__file__).parent, folder / "calls", runtime_ext.runtime_library()
    command = ["g++", "-std=c++20", "-O2", "-D_FILE_OFFSET_BITS=64", "-D_GNU_SOURCE", f"-isystem{ffi / 'include'}"]
    command += [*(f"-I{one}" for one in runtime_ext.include_folders()), Path(__file__).with_suffix(".cc"), library]
    command += [f"-L{ffi / 'lib'}", "-ltvm_ffi", f"-Wl,-rpath,{ffi / 'lib'}:{library.parent}", "-ldl", "-pthread"]
    subprocess.run([*map(str, command), "-o", str(path)], check=True)
    return path


def smallest(folder: Path) -> Path:
    """A library that computes hardly anything."""
    g, path = Graph("product", seed=1), folder / "product.so"
    g.input("x", (1, 16))
    flexcomp.build(g.model(g.op("MatMul", "x", g.normal((16, 16), 0.25)), (1, 16))).export_library(path)
    return path


def main() -> int:
    """Print a row for each loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="?", type=Path, metavar="LIBRARY")
    parser.add_argument("--budget", default="all", help="as flexcomp-run takes budgets")
    parser.add_argument("--times", type=int, default=20_000, help="inferences of a round")
    parser.add_argument("--rounds", type=int, default=15)
    json_option(parser, "calls")
    args = parser.parse_args()
    results, table = Results.begin("benchmarks.lab.calls"), Table(COLUMNS)
    with tempfile.TemporaryDirectory() as scratch:
        library = args.library or smallest(Path(scratch))
        budget = resolve_in(args.budget, read_summary(library))
        command = [program(Path(scratch)), library, library.with_suffix(".weights"), budget, args.times, args.rounds]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    rounds = np.array([line.split() for line in done.stdout.splitlines()], dtype=float)
    own, interface = np.median(rounds, axis=0).reshape(2, 2)
    table.add("the library", *own)
    table.add("flexcomp.h", *interface)
    results.write(args.json, [table])
    return int(interface[0] - own[0] > _MORE_US)


if __name__ == "__main__":
    sys.exit(main())

"""Cold starts: flexcomp next to ncnn, MNN, ONNX Runtime and OpenVINO, from the start of a process to the first output.

    python -m benchmarks.cold DIR --prepare           # build and convert, which takes long and can be done before
    python -m benchmarks.cold DIR                     # all networks, one and two threads, ten rounds; wants a quiet machine
    python -m benchmarks.cold DIR --show              # only print the records

Models lie in DIR and are out of the page cache when a process starts, which is verified; libraries are in memory, for all alike,
and memory that a start takes was touched the moment before, or a virtual machine would have to ask its host for it.
Ours is `flexcomp-run`, from before its start until its output is written and reported; of peers Python is running and
everything imported. An engine with a cache on disk starts once with and once without, and goes on in the faster way: MNN's
cache file, OpenVINO's CACHE_DIR, ONNX Runtime's optimised model with packed weights; ncnn has none. All take turns, outputs are
compared with ONNX Runtime's. The bound is the time to read the weights, in one form and at the bandwidth that our loader had in
the same round, or the fastest computing of that round, and 15 ms for a process. Every start is a line of
DIR/records-SOURCES.jsonl at once, so a run that was cut off goes on; another compiler or other networks have a file
of their own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.cold import tables
from benchmarks.cold.artifacts import COMPILER, MODELS, Place, digest
from benchmarks.cold.contenders import INT8, OURS, PEERS, WARM, Ours
from benchmarks.cold.networks import NETWORKS
from benchmarks.cold.summary import Network, Records, summarise
from benchmarks.cold.turns import Turns
from benchmarks.peers.machine import StillCached
from benchmarks.peers.measure import ROOT, EngineFailure, EnvironmentFailure
from benchmarks.results import Results, json_option

CONTENDERS = (OURS, INT8, WARM, *PEERS)


def measure(args: argparse.Namespace, records: Records) -> None:
    """Prepare the chosen networks, and take their turns unless that is all."""
    contenders = [one for one in CONTENDERS if not args.only or one.name.split(" cached")[0] in args.only]
    for name in args.networks:
        place = Place.of(name, args.dir)
        for threads in args.threads:
            turns = Turns(place, threads, contenders, records, args.seconds)
            turns.prepare(_say)
            if not args.prepare:
                turns.measure(args.rounds, _say)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def report(written: Results, networks: list[Network], path: Path) -> None:
    """Print the tables, and write them."""
    made = []
    for threads in dict.fromkeys(one.threads for one in networks):
        found = [one for one in networks if one.threads == threads]
        for make in (tables.starts, tables.continuing, tables.storage):
            made.append(make(found, threads))
            print(f"\n{made[-1].markdown()}")
        print(f"\n{tables.closing(found)}")
    written.write(path, made, networks=[asdict(one) for one in networks])


def main() -> int:
    """Measure, and print all records; the status is 1 if an output of ours is wrong or missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a folder on the disk to start from; what is built stays there")
    parser.add_argument("--prepare", action="store_true", help="only build and convert what is not there yet")
    parser.add_argument("--show", action="store_true", help="only print what was measured")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS.values(), default=list(NETWORKS.values()), metavar="NETWORK")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the contenders only these, such as flexcomp and ncnn")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a process goes on after its third inference")
    parser.add_argument("--records", type=Path, help="where starts are recorded; default: DIR/records-SOURCES.jsonl")
    json_option(parser, "cold")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    written = Results.begin("benchmarks.cold")
    made_of = digest((*COMPILER, *MODELS), ROOT)
    records = Records(args.records or args.dir / f"records-{made_of}.jsonl")
    if not args.show:
        try:
            measure(args, records)
        except (EngineFailure, EnvironmentFailure, StillCached) as error:
            sys.exit(f"error: {error}")
    if args.prepare:
        return 0
    networks = summarise(records)
    report(written, networks, args.json)
    ours = {one.name for one in CONTENDERS if isinstance(one, Ours)}
    wrong = [one.name for one in networks if ours & one.failures.keys()]
    wrong += [one.name for one in networks for name, times in one.times.items() if name in ours and not times.right]
    return int(bool(wrong))


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

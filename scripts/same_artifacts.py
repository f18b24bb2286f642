"""Whether another checkout of flexcomp makes the same artifacts, byte for byte: does code that moved still do the same?

    python -m scripts.same_artifacts OTHER DIR [NETWORK …]

OTHER is a checkout with a `.venv` of its own. Both build the networks (`benchmarks/models.py` has their names) into DIR/this and
DIR/other, with one runtime, this checkout's: an object that was compiled elsewhere holds other paths. Nothing is taken from
the cache of kernels, and their names leave out what they were compiled by: the sources, which did change. The exit status is
1 if a library or a weights file differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
from pathlib import Path

from benchmarks.lab.versus import HERE, NETWORKS
from flexcomp import runtime_ext

BUILD = """
import sys
import flexcomp
from benchmarks import models
from flexcomp.compiler import machine_code
network = models.load(sys.argv[2])
built = flexcomp.build(network.model, input_shapes=network.input_shapes, threads=1, budget=0.1, cache=False)
built.export_library(f"{sys.argv[1]}/{sys.argv[2]}.so")
"""


def main() -> int:
    """Build with both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("dir", type=Path, help="where artifacts lie")
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=list(NETWORKS))
    args = parser.parse_args()
    os.environ["FLEXCOMP_NATIVE"] = str(runtime_ext.runtime_object().parent)
    different = 0
    for name in args.names:
        digests = []
        for checkout, folder in ((HERE, args.dir.resolve() / "this"), (args.other.resolve(), args.dir.resolve() / "other")):
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run([checkout / ".venv/bin/python", "-c", BUILD, folder, name], cwd=checkout, check=True)
            digests.append([hashlib.sha256((folder / f"{name}.{kind}").read_bytes()).hexdigest() for kind in ("so", "weights")])
        different += digests[0] != digests[1]
        print(f"{name}: {'the same' if digests[0] == digests[1] else 'different'}, {' '.join(digests[0])}", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())

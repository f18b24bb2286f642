"""Builds the networks of a soak and finds their right outputs. A process of its own, with the compiler.

    python -m benchmarks.soak.prepare DIR

DIR gets NETWORK-VERSION.so and .weights, and expected.json: for every network its inputs' files, and for every version
the hashes of the outputs, by threads, rung, first or second inference, and input. An output that is hashed here came from a
session of its own, with everything read by plain reads, and lies within TOLERANCE of ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime

import flexcomp
from benchmarks.soak.files import digest
from benchmarks.soak.networks import VERSIONS, Network, networks
from flexcomp.runtime.library import read_info

# Of the largest output. Both add up float32 products, up to 4,096 in a sum, each in an order of its own, and some kernels are
# Winograd's: differences were 3e-7 to 1.3e-6. Other or stale weights differ by the size of the output.
TOLERANCE = 1e-5
THREADS = (1, 2, 3)
BUILT_FOR = 2  # threads


def prepare(folder: Path) -> None:
    """Everything into `folder`."""
    expected: dict[str, dict] = {}
    for version in VERSIONS:
        for network in networks(version):
            library = folder / f"{network.name}-{version}.so"
            flexcomp.build(network.model, threads=BUILT_FOR).export_library(library)
            inputs = folder / f"{network.name}.npz"
            np.savez(inputs, **{f"{i}:{key}": value for i, given in enumerate(network.inputs) for key, value in given.items()})
            entry = expected.setdefault(network.name, {"inputs": inputs.name, "outputs": {}, "largest_budget": 0})
            entry["outputs"][version] = _outputs(library, network)
            entry["largest_budget"] = max(entry["largest_budget"], read_info(library)["resident_bytes"])
    (folder / "expected.json").write_text(json.dumps(expected))


def _outputs(library: Path, network: Network) -> dict[str, list[list[str]]]:
    """Of the first inference of every rung, and of the second, for every input; by threads."""
    judge = onnxruntime.InferenceSession(network.model.SerializeToString(), providers=["CPUExecutionProvider"])
    right = [judge.run(None, given)[0] for given in network.inputs]
    hashes: dict[str, list[list[str]]] = {}
    for threads in THREADS:
        with flexcomp.load(library, threads=threads) as session:
            budgets = [rung.budget_bytes for rung in session.ladder]
        hashes[str(threads)] = []
        for budget in budgets:
            outputs: list[list[np.ndarray]] = [[], []]  # of first inferences, which may use other kernels, and of second ones
            for given, want in zip(network.inputs, right, strict=True):
                with flexcomp.load(library, budget, threads, direct=False) as session:
                    for turn in outputs:
                        turn.append(session.run(given)["output"])
                apart = max(float(np.abs(turn[-1] - want).max() / np.abs(want).max()) for turn in outputs)
                if not apart <= TOLERANCE:
                    raise SystemExit(f"{library.name} at {budget} bytes, {threads} threads: {apart:.1e} from ONNX Runtime")
            hashes[str(threads)] += [[digest(output) for output in turn] for turn in outputs]
    return hashes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="where the libraries and what they must compute go")
    prepare(parser.parse_args().dir)

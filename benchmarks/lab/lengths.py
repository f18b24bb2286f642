"""Latency of texts of several lengths in a library that pads, compared with ONNX Runtime at their true lengths.

    python -m benchmarks.lab.lengths [--lengths 7,17,40,90,122,300,512] [--shapes 16,64,128,512] [--layers 6] [--int8]

The network is an encoder like MiniLM (`benchmarks.networks.encoders`), with one thread; with --int8 ONNX Runtime's dynamic
quantiser quantises its products. Both run in this process and take turns, each time until it has had 50 ms, so that a busy
machine disturbs both. Reported are, for each length, the least processor time of an inference, their ratio, and the largest
difference of outputs. The exit status is 1 if the median of the ratios exceeds 0.9, one of them 1.15, or a difference 1e-5 of the
largest output, 0.1 with --int8.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import flexcomp
from benchmarks.networks.encoders import VOCABULARY, encoder
from benchmarks.results import Results, Table, json_option

MOST_IN_MEDIAN, MOST = 0.9, 1.15
_TURN_S = 0.05
COLUMNS = {"tokens": "d", "flexcomp, ms": ".3f", "ONNX Runtime, ms": ".3f", "ratio": ".2f", "outputs differ by": ".1e"}


def inputs(length: int, batch: int = 1) -> dict[str, np.ndarray]:
    """Random ids; texts of a batch after the first are shorter."""
    rng = np.random.default_rng(length)
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        mask[row, int(rng.integers(length // 2, length + 1)) :] = 0
    return {"ids": rng.integers(0, VOCABULARY, (batch, length)), "mask": mask}


def quantised(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """With products of 8 bits, activations by their range at run time."""
    from onnxruntime.quantization import quantize_dynamic  # takes long to import

    onnx.save(model, folder / "float32.onnx")
    quantize_dynamic(folder / "float32.onnx", folder / "int8.onnx", op_types_to_quantize=["MatMul"], per_channel=True)
    return onnx.load(folder / "int8.onnx")


def least_ms(calls: tuple[Callable[[], object], ...], turns: int) -> list[float]:
    """The least processor time of a call, in milliseconds, of each of several that take turns."""
    least = [float("inf")] * len(calls)
    for _ in range(turns):
        for index, call in enumerate(calls):
            call()
            end = time.perf_counter() + _TURN_S
            while time.perf_counter() < end:
                begun = time.thread_time_ns()
                call()
                least[index] = min(least[index], (time.thread_time_ns() - begun) / 1e6)
    return least


def main() -> int:
    """Build, and print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="7,17,40,90,122,300,512")
    parser.add_argument("--shapes", default="16,64,128,512", help="for which the library is built")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=1, help="texts of an inference")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--turns", type=int, default=10)
    json_option(parser, "lengths")
    args = parser.parse_args()
    lengths, shapes = ([int(one) for one in given.split(",")] for given in (args.lengths, args.shapes))
    results, table = Results.begin("benchmarks.lab.lengths"), Table(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        model = encoder(args.layers)
        model = quantised(model, Path(folder)) if args.int8 else model
        onnx.save(model, Path(folder, "model.onnx"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        reference = onnxruntime.InferenceSession(Path(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
        artifact = flexcomp.build(
            model, input_shapes=dict.fromkeys(("ids", "mask"), (args.batch, "n")), shapes={"n": shapes},
            pad={"ids": 0, "mask": 0}, threads=1, probe=False, progress=False,
        )  # fmt: skip
        with artifact.session("all") as session:
            for length in lengths:
                given = inputs(length, args.batch)
                wanted, found = reference.run(None, given)[0], session.run(given)["output"]
                error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                mine, theirs = least_ms((partial(session.run, given), partial(reference.run, None, given)), args.turns)
                table.add(length, mine, theirs, mine / theirs, error)
    results.write(args.json, [table])
    ratios, errors = ([row[column] for row in table.rows] for column in (3, 4))
    print(f"in the median {statistics.median(ratios):.2f}, at most {max(ratios):.2f}")
    failed = statistics.median(ratios) > MOST_IN_MEDIAN or max(ratios) > MOST or max(errors) > (0.1 if args.int8 else 1e-5)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

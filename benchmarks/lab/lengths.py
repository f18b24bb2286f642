"""Latency of texts of several lengths in a library that pads, compared with ONNX Runtime at their true lengths, in turns.

    python -m benchmarks.lab.lengths [--lengths 7,17,40,90,122,300,512] [--int8]

The network is an encoder like MiniLM, for up to 16, 64, 128 and 512 tokens, with one thread; with --int8 ONNX Runtime's dynamic
quantiser quantises its products. The exit status is 1 if the median of the ratios exceeds 0.9, one of them 1.15, or a difference
of outputs 1e-5 of the largest one, 0.1 with --int8.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import flexcomp
from benchmarks.lab.shapes import median_ms, texts
from benchmarks.networks.encoders import encoder
from benchmarks.results import Results, Table, json_option

MOST_IN_MEDIAN, MOST = 0.9, 1.15
COLUMNS = {"tokens": "d", "flexcomp, ms": ".3f", "ONNX Runtime, ms": ".3f", "ratio": ".2f", "outputs differ by": ".1e"}


def main() -> int:
    """Build, and print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="7,17,40,90,122,300,512")
    parser.add_argument("--int8", action="store_true")
    json_option(parser, "lengths")
    args = parser.parse_args()
    results, table = Results.begin("benchmarks.lab.lengths"), Table(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(encoder(6), path := Path(folder, "float32.onnx"))
        if args.int8:
            from onnxruntime.quantization import quantize_dynamic  # takes long to import

            quantize_dynamic(path, path := Path(folder, "int8.onnx"), op_types_to_quantize=["MatMul"], per_channel=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        reference = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        axes, pad = dict.fromkeys(("ids", "mask"), (1, "n")), {"ids": 0, "mask": 0}
        built = flexcomp.build(path, input_shapes=axes, shapes={"n": (16, 64, 128, 512)}, pad=pad, threads=1, progress=False)
        with built.session("all") as session:
            for length in map(int, args.lengths.split(",")):
                given = texts(length)
                wanted, found = reference.run(None, given)[0], session.run(given)["output"]
                error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                mine, theirs = median_ms((partial(session.run, given), partial(reference.run, None, given)), turns=10)
                table.add(length, mine, theirs, mine / theirs, error)
    results.write(args.json, [table])
    ratios, errors = ([row[column] for row in table.rows] for column in (3, 4))
    print(f"in the median {statistics.median(ratios):.2f}, at most {max(ratios):.2f}")
    return int(statistics.median(ratios) > MOST_IN_MEDIAN or max(ratios) > MOST or max(errors) > (0.1 if args.int8 else 1e-5))


if __name__ == "__main__":
    sys.exit(main())

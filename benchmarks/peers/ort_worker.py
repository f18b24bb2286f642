"""Times ONNX Runtime in a process of its own; prints {"latency_ms": [...]}."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import onnxruntime


def main() -> None:
    """Run one model on one input, over and over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("input", help="an .npz file with the inputs by name")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    with np.load(args.input) as file:
        inputs = dict(file)
    session.run(None, inputs)
    latencies = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        session.run(None, inputs)
        latencies.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"latency_ms": latencies}))


if __name__ == "__main__":
    main()

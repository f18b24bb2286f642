"""What a build takes in memory beside the compiler: its weights once, and little besides."""

import json
import subprocess
import sys

import onnx
import pytest

from benchmarks.networks.graph import Graph

MIB = 1 << 20
TIMES, BESIDE = 2.0, 24 * MIB  # of the weights, and what building anything takes

# A small network first: what it leaves is the compiler. Then the peak is counted anew.
BUILD = """
import gc, json, sys
import onnx
import flexcomp

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def build(path):
    options = {"target": "llvm -mcpu=x86-64-v3", "threads": 1, "strategy": sys.argv[3]}
    flexcomp.build(path, **options).export_library(path.replace(".onnx", ".so"))

build(sys.argv[1])
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
idle = kib("VmRSS")
build(sys.argv[2])
print(json.dumps({"idle": idle << 10, "peak": kib("VmHWM") << 10}))
"""


def network(channels: int, dense: int) -> onnx.ModelProto:
    """Kernels of all kinds: 3×3 and 1×1 convolutions, and a product."""
    g = Graph("heavy", seed=1)
    x = g.input("x", (1, channels, 16, 16))
    for kernel in (3, 3, 1, 1):
        x = g.relu(g.conv(x, channels, kernel))
    x = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1, channels=channels)
    x = g.relu(g.dense(x, dense))
    x = g.relu(g.dense(x, dense))
    return g.model(g.dense(x, 10), (1, 10))


@pytest.mark.parametrize(("external", "strategy"), [(False, "best"), (True, "on_demand")])  # which plans in no time
def test_a_build_holds_its_weights_once(external, strategy, tmp_path):
    paths = [str(tmp_path / name) for name in ("small.onnx", "large.onnx")]
    onnx.save(network(64, 64), paths[0])
    model = network(512, 3072)
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    assert weights > 60 * MIB
    onnx.save(model, paths[1], save_as_external_data=external)
    done = subprocess.run([sys.executable, "-c", BUILD, *paths, strategy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    taken = seen["peak"] - seen["idle"]
    assert taken <= TIMES * weights + BESIDE, f"{taken / MIB:.0f} MiB for {weights / MIB:.0f} MiB of weights"
    print(f"{taken / MIB:.0f} MiB for {weights / MIB:.0f} MiB of weights")

"""Tries an installed wheel from a folder outside the checkout: build, export, load, run.

Run by .ci/run with nothing but the wheel and its dependencies installed; not collected by pytest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import flexcomp


def network(weights: np.ndarray, bias: np.ndarray) -> onnx.ModelProto:
    """y = relu(x · weights + bias)."""
    nodes = [
        helper.make_node("Gemm", ["x", "weights", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, weights.shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weights.shape[1]])
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph(nodes, "dense", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Fail with an assertion if anything is not as it should be."""
    assert "site-packages" in flexcomp.__file__, f"flexcomp comes from {flexcomp.__file__}"
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((1024, 512), dtype=np.float32)
    bias = rng.standard_normal(512, dtype=np.float32)
    x = rng.standard_normal((1, 1024), dtype=np.float32)
    expected = np.maximum(x @ weights + bias, 0)
    close = {"rtol": 0, "atol": 1e-4 * float(np.abs(expected).max())}

    onnx.save(network(weights, bias), "dense.onnx")
    np.save("x.npy", x)
    flexcomp.build("dense.onnx", budget=0.5).export_library("dense.so")
    for budget in (None, 0.5, "min"):
        outputs = flexcomp.load("dense.so", budget=budget).run({"x": x})
        np.testing.assert_allclose(np.asarray(outputs["y"]), expected, **close)

    program = shutil.which("flexcomp-run")
    assert Path(program).read_bytes()[:4] == b"\x7fELF", f"{program} is a script that starts the runner"
    Path("outputs").mkdir()
    command = ["flexcomp-run", "dense.so", "--budget", "0.5", "--input", "x=x.npy", "--output-dir", "outputs"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert report["arena_bytes"] <= report["budget_bytes"] < weights.nbytes
    np.testing.assert_allclose(np.load(Path("outputs", "y.npy")), expected, **close)

    inspected = subprocess.run(
        ["flexcomp", "inspect", "dense.so", "--json", "--picture", "plan.png", "--html", "report.html"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(inspected.stdout)["outputs"] == [{"name": "y", "shape": [1, 512], "dtype": "float32"}]
    print("the wheel works")


if __name__ == "__main__":
    main()

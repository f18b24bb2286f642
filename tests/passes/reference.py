"""Running Relax modules as they are, on TVM's virtual machine."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

# Small modules are compiled in a third of the time, and run once.
UNOPTIMISED = tvm.target.Target({"kind": "llvm", "opt-level": 0})


@tvm.register_global_func("flexcomp.lacking", override=True)
def _marked(weights: tvm.runtime.Tensor, _numbers: str) -> tvm.runtime.Tensor:
    """Marked weights: a copy, because the machine does not know that a result may be an operand."""
    return tvm.runtime.tensor(weights.numpy())


def random_arguments(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    """Values for all parameters of main; positive ones for names that end in `variance`."""
    rng = np.random.default_rng(seed)
    arguments = []
    for param in mod["main"].params:
        array = rng.standard_normal([int(d) for d in param.ty.shape.values]).astype(str(param.ty.dtype))
        arguments.append(np.abs(array) + np.float32(0.5) if param.name.endswith("variance") else array)
    return arguments


def evaluate(mod: tvm.IRModule, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results of main, as a list."""
    executable = tvm.compile(mod, target=UNOPTIMISED)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.asarray(a, order="C")) for a in arguments))
    return [part.numpy() for part in ([result] if hasattr(result, "numpy") else result)]


def assert_same_results(before: tvm.IRModule, after: tvm.IRModule, tolerance: float = 1e-5) -> None:
    """Both modules compute the same from the same random arguments, up to `tolerance` of the largest value."""
    arguments = random_arguments(before)
    for expected, actual in zip(evaluate(before, arguments), evaluate(after, arguments), strict=True):
        assert expected.shape == actual.shape
        assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()

"""Products of activations against NumPy, over random shapes."""

import numpy as np

from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import MatmulSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .kernels import call, library, require_no_memory

UNITS = [VectorUnit(8, 16), VectorUnit(4, 32, by_lane=True)]

def test_random_shapes():
    rng = np.random.default_rng(0)
    pick = lambda *values: int(rng.choice(values))  # noqa: E731
    specs = []
    for _ in range(40):
        shared = pick(0, 1, 2)
        epilogue = (("acc",), ("multiply", ("acc",), ("const", 0.125)), ("add", ("acc",), ("tensor", 0)))[pick(0, 1, 2)]
        specs.append(
            MatmulSpec(
                pick(1, 2, 3), pick(1, 2, 7, 30), pick(1, 5, 8, 33, 100), pick(1, 3, 4, 65),
                left_shared=shared == 1, right_shared=shared == 2, epilogue=epilogue,
            )
        )  # fmt: skip
    functions = {f"kernel_{i}": candidates(s, UNITS[i % 2])[0].build() for i, s in enumerate(specs)}
    compiled = library(functions)
    for i, spec in enumerate(specs):
        a = rng.standard_normal((1 if spec.left_shared else spec.batch, spec.m, spec.k)).astype("f4")
        b = rng.standard_normal((1 if spec.right_shared else spec.batch, spec.k, spec.n)).astype("f4")
        t = rng.standard_normal((spec.batch, spec.m, spec.n)).astype("f4")
        expected = a.astype("f8") @ b
        expected = expected * 0.125 if spec.epilogue[0] == "multiply" else expected + t * spec.tensors
        found = call(compiled[f"kernel_{i}"], a, b, *[t] * spec.tensors, out=(spec.batch, spec.m, spec.n))
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=str(spec))


def test_no_memory_besides_the_operands():
    require_no_memory({"kernel": candidates(MatmulSpec(12, 197, 197, 64), VectorUnit(16, 32))[0].build()})

import pytest
import tvm
import tvm_ffi
from tvm import relax


@pytest.fixture
def apply():
    """Run a pass; check that it leaves its input alone and that its result is well formed."""

    def run(transform: tvm.ir.transform.Pass, mod: tvm.IRModule) -> tvm.IRModule:
        text, functions = mod.script(), dict(mod.functions_items())
        result = transform(mod)
        assert mod.script() == text, "the pass changed its input"
        assert all(mod[gv].same_as(func) for gv, func in functions.items()), "the pass changed its input"
        relax.analysis.well_formed(result)
        return result

    return run


@pytest.fixture
def becomes(apply):
    """Check that a pass turns a module into another."""

    def check(transform: tvm.ir.transform.Pass, before: tvm.IRModule, expected: tvm.IRModule) -> None:
        after = apply(transform, before)
        assert tvm_ffi.structural_equal(after, expected), f"{after.script()}\n--- expected ---\n{expected.script()}"

    return check

"""Imported networks: their operators, and their outputs compared with those of ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
from tvm import relax

from flexcomp.frontend import load_model
from flexcomp.passes import Canonicalise, FoldBatchNorm, ToNHWC
from flexcomp.passes.ir import bindings, operator

from ..passes.reference import evaluate


def compare(proto: onnx.ModelProto, input_shapes=None, tolerance: float = 1e-5):
    """The network after the graph passes computes what ONNX Runtime computes. Returns the imported network."""
    imported = load_model(proto, input_shapes)
    mod = imported.mod
    relax.analysis.well_formed(mod)
    for transform in (Canonicalise(), FoldBatchNorm(), ToNHWC()):
        mod = transform(mod)
        relax.analysis.well_formed(mod)
    rng = np.random.default_rng(1)
    inputs = [
        rng.standard_normal([int(d) for d in p.ty.shape.values]).astype(str(p.ty.dtype))
        for p in mod["main"].params[: len(imported.input_names)]
    ]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(list(imported.output_names), dict(zip(imported.input_names, inputs, strict=True)))
    actual = evaluate(mod, [*inputs, *imported.weights])
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()
    return imported


def operators(imported) -> list[str]:
    return [operator(b.value) for b in bindings(imported.mod["main"])]

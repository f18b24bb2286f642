"""ChooseKernels, SliceLayers and PretransformWeights, one after the other."""

import numpy as np
import tvm
from tvm import relax

from flexcomp.compiler.weights import evaluate
from flexcomp.passes import ChooseKernels, FuseLayers, PretransformWeights, SliceLayers
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls, conv, network

op = relax.op
UNIT = VectorUnit(8, 16)


def two_layers() -> tvm.IRModule:
    def body(emit, x, w, b, v):
        y = emit(op.nn.relu(emit(op.add(emit(conv(x, w, padding=(1, 1))), b))))
        return op.matmul(emit(op.reshape(y, (64, 40))), v)

    return network({"x": (1, 8, 8, 16)}, {"w": (40, 3, 3, 16), "b": (40,), "v": (40, 24)}, body)


def layers(mod: tvm.IRModule) -> list[relax.Function]:
    return [func for gv, func in mod.functions_items() if gv.name_hint.startswith("layer_")]


def test_decisions_travel_as_attributes():
    fused = FuseLayers()(two_layers())
    text = fused.script()
    chosen = ChooseKernels(UNIT)(fused)
    sliced = SliceLayers(UNIT)(chosen)
    assert fused.script() == text
    relax.analysis.well_formed(sliced)
    assert all("flexcomp.kernel" not in func.attrs for func in layers(fused))
    kernels = [str(func.attrs["flexcomp.kernel"]) for func in layers(sliced)]
    assert all(name.startswith("direct ") for name in kernels)
    for func, name, channels in zip(layers(sliced), kernels, (40, 24), strict=True):
        block = int(name.split("×")[1])
        assert block % UNIT.width in (0, UNIT.width // 2)
        assert int(func.attrs["flexcomp.blocks"]) == -(-channels // block)


def test_kernels_replace_layers_and_panels_replace_weights():
    before = SliceLayers(UNIT)(ChooseKernels(UNIT)(FuseLayers()(two_layers())))
    after = relax.transform.LiftTransformParams()(PretransformWeights(UNIT)(before))
    relax.analysis.well_formed(after)
    assert not layers(after), "layer functions are consumed"
    kernels = [name for name in calls(after) if "direct" in name]
    assert len(kernels) == 2
    for name in kernels:
        attrs = after[name].attrs
        assert attrs["flexcomp.implementation"].startswith("direct ")
        assert int(attrs["flexcomp.flops"]) > 0 and int(attrs["flexcomp.slices"]) >= 1
        assert not any(key in attrs for key in ("flexcomp.kernel", "flexcomp.blocks", "flexcomp.layer"))


def test_panels_hold_the_weights():
    before = SliceLayers(UNIT)(ChooseKernels(UNIT)(FuseLayers()(two_layers())))
    after = relax.transform.LiftTransformParams()(PretransformWeights(UNIT)(before))
    rng = np.random.default_rng(0)
    w, b, v = (rng.standard_normal(s).astype("f4") for s in ((40, 3, 3, 16), (40,), (40, 24)))
    panels = evaluate(after["main_transform_params"], [w, b, v])
    conv_panel, dense_panel = panels
    blocks, _, block = conv_panel.shape
    starts = np.minimum(np.arange(blocks) * block, 40 - block)
    for i, start in enumerate(starts):
        np.testing.assert_array_equal(conv_panel[i, 0], b[start : start + block])
        np.testing.assert_array_equal(conv_panel[i, 1:145], w[start : start + block].reshape(block, -1).T)
    assert not dense_panel[:, 0].any(), "no bias is a bias of zero"
    np.testing.assert_array_equal(dense_panel[0, 1:41], v[:, : dense_panel.shape[2]])


def test_equal_layers_share_a_kernel():
    def body(emit, x, w, v):
        return op.nn.relu(emit(conv(emit(op.nn.relu(emit(conv(x, w)))), v)))

    mod = network({"x": (1, 8, 8, 16)}, {"w": (16, 1, 1, 16), "v": (16, 1, 1, 16)}, body)
    after = PretransformWeights(UNIT)(SliceLayers(UNIT)(ChooseKernels(UNIT)(FuseLayers()(mod))))
    kernels = [name for name in calls(after) if "direct" in name]
    assert len(kernels) == 2 and len(set(kernels)) == 1

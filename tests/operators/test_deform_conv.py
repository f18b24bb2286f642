"""Deformable convolution: as ONNX Runtime computes it, with everything resident and in the smallest budget."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from tests.jointly import jointly

from .networks import node


def network(image=(1, 4, 7, 6), weight=(6, 4, 3, 3), group=1, offset_group=1, mask=True, bias=True, opset=22, **attributes):
    """A model of one node, and its inputs, which reach out of the image."""
    rng = np.random.default_rng(0)
    taps, pads, strides, dilations = weight[2:], *(attributes.get(n, d) for n, d in (("pads", [0] * 4), ("strides", [1, 1]),
                                                                                    ("dilations", [1, 1])))  # fmt: skip
    out = [
        (image[2 + i] + pads[i] + pads[2 + i] - (taps[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)
    ]
    count = offset_group * taps[0] * taps[1]
    inputs = {"x": rng.standard_normal(image), "offset": 3 * rng.standard_normal((image[0], 2 * count, *out))}
    if mask:
        inputs["mask"] = rng.uniform(size=(image[0], count, *out))
    weights = {"w": rng.standard_normal(weight), **({"b": rng.standard_normal(weight[0])} if bias else {})}
    names = ["x", "w", "offset", "b" if bias else "", "mask" if mask else ""]
    while not names[-1]:
        names.pop()
    graph = helper.make_graph(
        [node("DeformConv", *names, name="deform", group=group, offset_group=offset_group, kernel_shape=taps, **attributes)],
        "network",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (image[0], weight[0], *out))],
        [numpy_helper.from_array(array.astype("f4"), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return model, {name: array.astype("f4") for name, array in inputs.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"pads": [1, 1, 1, 1]},
        {"weight": (6, 2, 3, 3), "group": 2, "offset_group": 2, "mask": False, "opset": 19},
        {
            "image": (2, 8, 7, 6), "weight": (6, 4, 3, 3), "group": 2, "offset_group": 4, "strides": [2, 1], "dilations": [2, 1],
            "pads": [2, 0, 1, 1],
        },
        {"image": (1, 8, 5, 9), "weight": (8, 2, 2, 3), "group": 4, "offset_group": 2, "bias": False},
        {"weight": (3, 4, 1, 1), "bias": False, "mask": False},
    ],
    ids=str,
)  # fmt: skip
@jointly(budgets=("min", "all"), threads=2)
def test_is_as_onnx_runtime_computes_it(settings):
    model, inputs = network(**settings)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    for got in (yield model, inputs).runs:
        np.testing.assert_allclose(got["y"], want, rtol=0, atol=2e-6 * abs(want).max())


def test_weights_of_8_bits_are_those_of_a_convolution():
    model, inputs = network(pads=[1, 1, 1, 1])
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    with flexcomp.build(model, threads=1, weights={"deform": "int8"}).session("min") as session:
        got = session.run(inputs)["y"]
    assert 1e-4 < abs(got - want).max() / abs(want).max() < 0.02


@pytest.mark.parametrize("place", [0.0, 1e30, -1e30, np.inf, np.nan], ids=str)
@jointly()
def test_places_outside_of_the_image_are_0(place):
    """Whatever number an offset is, and whatever the image holds."""
    model, inputs = network(bias=False, mask=False)
    inputs["offset"] = np.full_like(inputs["offset"], place)
    inputs["x"][:] = np.inf if place else 1.0
    got = (yield model, inputs)["y"]
    taps = numpy_helper.to_array(model.graph.initializer[0]).sum(axis=(1, 2, 3))
    want = taps[None, :, None, None] if place == 0 else 0.0 if abs(place) > 1 else np.nan
    np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: given["kernel_shape"].ints.__setitem__(0, 2), r"node 'deform' \(DeformConv\)"),
        (lambda given: setattr(given["group"], "i", 3), r"node 'deform' \(DeformConv\)"),
        (lambda given: setattr(given["offset_group"], "i", 2), r"node 'deform' \(DeformConv\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, words):
    model, _ = network()
    change({attribute.name: attribute for attribute in model.graph.node[0].attribute})
    with pytest.raises(flexcomp.FlexcompError, match=words):
        flexcomp.build(onnx.ModelProto.FromString(model.SerializeToString()))

"""Non-maximum suppression: the boxes of ONNX Runtime in its order, and rows of -1 after them."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import UnsupportedModelError
from tests.jointly import jointly

from .networks import node


def network(images, classes, boxes, most=None, overlap=None, score=None, rows=None, **attributes):
    values = {"most": (most, np.int64), "overlap": (overlap, np.float32), "score": (score, np.float32)}
    given = {name: kind([value]) for name, (value, kind) in values.items() if value is not None}
    names = [name if name in given else "" for name in values]
    while names and not names[-1]:
        names.pop()
    graph = helper.make_graph(
        [node("NonMaxSuppression", "boxes", "scores", *names, **attributes)],
        "network",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, (images, boxes, 4)),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, (images, classes, boxes)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, (rows, 3))],
        [onnx.numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def detections(images, classes, boxes, is_centred=False):
    rng = np.random.default_rng(boxes)
    corners = rng.uniform(0, 10, (images, boxes, 4)).astype("f4")  # any two opposite ones
    if is_centred:
        corners[..., 2:] = rng.uniform(0.5, 6, (images, boxes, 2))
    scores = rng.uniform(0, 1, (images, classes, boxes)).astype("f4").round(1)  # with equal ones
    return {"boxes": corners, "scores": scores}


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((1, 1, 12), {"most": 4, "overlap": 0.3}),
        ((2, 3, 30), {"most": 9, "overlap": 0.2, "score": 0.45}),
        ((1, 2, 30), {"most": 100, "overlap": 0.5, "score": 0.0}),
        ((1, 2, 25), {"most": 25, "overlap": 0.4, "score": 0.3, "center_point_box": 1}),
        ((2, 2, 9), {"most": 5}),
    ],
    ids=str,
)
@jointly(kernels="fastest")
def test_selects_what_onnx_runtime_selects(sizes, settings):
    proto = network(*sizes, **settings)
    given = detections(*sizes, is_centred="center_point_box" in settings)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    found = (yield proto, given)["y"]
    assert len(found) == sizes[0] * sizes[1] * min(settings["most"], sizes[2])
    np.testing.assert_array_equal(found[: len(want)], want)
    assert (found[len(want) :] == -1).all()


def test_has_as_many_rows_as_the_model_declares(caplog):
    given = detections(1, 1, 20)
    proto = network(1, 1, 20, most=20, overlap=0.3)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    for rows in (len(want) - 1, len(want), len(want) + 2):
        with caplog.at_level(logging.WARNING):
            with flexcomp.build(network(1, 1, 20, most=20, overlap=0.3, rows=rows), threads=1).session() as session:
                found = session.run(given)["y"]
        assert f"its result has {rows} rows, whatever is selected" in caplog.text
        padded = np.concatenate([want, np.full((2, 3), -1)])
        np.testing.assert_array_equal(found, padded[:rows])


@pytest.mark.parametrize("opset", [11, 17])
@jointly(kernels="fastest")
def test_how_many_boxes_are_selected_is_an_output_that_the_model_asks_for(opset):
    """In ONNX it is the result's first extent."""
    proto = network(2, 3, 30, most=9, overlap=0.2, score=0.45)
    proto.opset_import[0].version = opset
    proto.graph.node.extend(
        [
            node("Shape", "y", out="shape"),
            node("Gather", "shape", "first", out="number"),
            node("Cast", "number", out="count", to=TensorProto.INT32),
        ]
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(0), "first"))
    proto.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT32, ()))
    proto.graph.output.append(helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)))
    given = detections(2, 3, 30)
    want, count, shape = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    found = yield proto, given
    assert found["count"] == count == len(want) and found["count"].shape == () and found["shape"].tolist() == shape.tolist()
    np.testing.assert_array_equal(found["y"][: len(want)], want)
    assert (found["y"][len(want) :] == -1).all() and len(found["y"]) == 54


@jointly(kernels="fastest")
def test_scores_that_are_no_numbers_select_nothing():
    given = detections(1, 1, 8)
    given["scores"][:] = np.nan
    found = (yield network(1, 1, 8, most=3, overlap=0.3, score=0.1), given)["y"]
    assert (found == -1).all()


def test_without_a_number_of_boxes():
    with pytest.raises(UnsupportedModelError, match=r"node 'y' \(NonMaxSuppression\): it selects no boxes: give it max_output"):
        flexcomp.build(network(1, 1, 8), threads=1)

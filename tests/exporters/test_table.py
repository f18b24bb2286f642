"""The page of docs says what the tests of this folder show."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import UnsupportedModelError

from .table import PAGE, table


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == table(), "run python -m tests.exporters.table"


def test_attention_of_the_optimiser_with_a_growing_cache_is_refused_by_name():
    graph = helper.make_graph(
        [helper.make_node("GroupQueryAttention", ["x", "w"], ["y"], "made", domain="com.microsoft")],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 8))],
        [onnx.numpy_helper.from_array(np.ones(8, "f4"), "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(UnsupportedModelError, match="GroupQueryAttention"):
        flexcomp.build(helper.make_model(graph, opset_imports=imports, ir_version=9), threads=1, probe=False)

"""onnxslim is imported without sympy, and whoever asks it for its inference of shapes gets that."""

import subprocess
import sys

_PROGRAM = """
import sys
from onnx import TensorProto, helper
from flexcomp.frontend.onnxslim_alone import onnxslim

assert "sympy" not in sys.modules
made = helper.make_node("Concat", ["x", "x"], ["y"], axis=1)
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", extent]) for name, extent in (("x", 3), ("y", None)))
model = helper.make_model(helper.make_graph([made], "g", [x], [y]))
found = onnxslim.slim(model, skip_optimizations=["constant_folding"]).graph.output[0].type.tensor_type.shape.dim
assert [one.dim_param or one.dim_value for one in found] == ["n", 6], found
assert "sympy" in sys.modules
from onnxslim.third_party.symbolic_shape_infer import SymbolicShapeInference, get_opset
"""
_OF_A_NEW_VERSION = """
import importlib, sys, types
from pathlib import Path
folder = Path(sys.argv[1], "onnxslim", "third_party")
folder.mkdir(parents=True)
Path(folder, "__init__.py").touch()
Path(folder, "symbolic_shape_infer.py").write_text("SymbolicShapeInference, other = 1, 2")
Path(folder.parent, "__init__.py").write_text("from .third_party.symbolic_shape_infer import SymbolicShapeInference, other")
sys.path.insert(0, sys.argv[1])
sys.modules["flexcomp.frontend"] = package = types.ModuleType("flexcomp.frontend")  # without the rest of it
import flexcomp
package.__path__ = [str(Path(flexcomp.__file__).parent / "frontend")]
from flexcomp.frontend.onnxslim_alone import onnxslim
assert onnxslim.other == 2
"""


def run(program: str, *args: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_imported_without_sympy_until_that_is_wanted():
    run(_PROGRAM)


def test_a_version_that_takes_more_of_the_module_is_imported_as_usual(tmp_path):
    run(_OF_A_NEW_VERSION, str(tmp_path))

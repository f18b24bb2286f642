"""The way in: a path, an ONNX model or a Relax module becomes a Relax module and its weights.

What comes out is the same for every source: `main` takes the network's inputs first and its weights
after them (attribute `num_input` says how many inputs), every shape is static, and of the constants
only scalars are left in the IR.
"""

from flexcomp.frontend.custom import CustomOperator, checked_operators, operators_in
from flexcomp.frontend.encoder_files import EncoderFiles
from flexcomp.frontend.fixed_inputs import checked_values
from flexcomp.frontend.known import known_operators
from flexcomp.frontend.load import Imported, load_model, load_shapes, title_of
from flexcomp.frontend.node_names import node_name, node_of
from flexcomp.frontend.onnx_model import external_files, ports_in
from flexcomp.frontend.operators import CKernel, Tensor

__all__ = [
    "CKernel", "CustomOperator", "EncoderFiles", "Imported", "Tensor", "checked_operators", "checked_values", "external_files",
    "known_operators", "load_model", "load_shapes", "node_name", "node_of", "operators_in", "ports_in", "title_of",
]  # fmt: skip

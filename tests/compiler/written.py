"""Device code from a toolkit that compiles nothing."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from flexcomp.compiler.builder import prepare
from flexcomp.compiler.kernel_compiler import KernelCompiler
from flexcomp.compiler.options import Request, options_of
from flexcomp.errors import TargetError
from flexcomp.program import Image, Kind
from flexcomp.runtime import parse_budget


class Written:
    """A toolkit whose machine code is the CUDA C itself."""

    def __init__(self, name: str = "1") -> None:
        self.name = name
        self.compiled = 0

    def require(self, architecture):
        if architecture.name == "sm_75":
            raise TargetError("not for sm_75")

    def version(self):
        return self.name

    def images(self, code, architecture):
        self.compiled += 1
        return (Image(int(architecture.name[3:]), Kind.CUBIN, code.source.encode()),)


def network():
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(40, 8, 3, 3)).astype("float32"), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (1, 8, 9, 9)), ("y", (1, 40, 7, 7))))
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weights]), opset_imports=[helper.make_opsetid("", 17)])


def built(target, toolkit, cache=None, **options):
    prepared = prepare(network(), target, options_of(**options), compiler=KernelCompiler(cache, toolkit))
    return prepared.artifacts([Request(parse_budget("min"))])[0]

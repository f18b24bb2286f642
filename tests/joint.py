"""Many imported graphs as one network: disconnected parts, whose inputs and outputs have marks. One build serves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import onnx
import tvm
from tvm import relax

import flexcomp
from flexcomp.compiler import builder
from flexcomp.compiler.options import options_of
from flexcomp.frontend import Imported
from flexcomp.passes.ir import bindings


def mark(index: int) -> str:
    """The beginning of the names of a part's inputs and outputs."""
    return f"g{index}_"


def together(parts: Sequence[Imported]) -> Imported:
    """One network of these; part i has its names marked."""
    inputs, weights, values, bound = [], [], [], []
    functions = {}
    for i, part in enumerate(parts):
        main, own = _with_functions_marked(part.mod, mark(i))
        functions |= own
        count = int(main.attrs["num_input"])
        inputs += main.params[:count]
        weights += main.params[count:]
        returned = main.body.body
        values += returned.fields if isinstance(returned, relax.Tuple) else [returned]
        bound += bindings(main)
    body = relax.SeqExpr([relax.DataflowBlock(bound)], relax.Tuple(values))
    main = relax.Function([*inputs, *weights], body, relax.TupleType([v.ty for v in values]), True)
    main = main.with_attrs({"global_symbol": "main", "num_input": len(inputs)})
    marked = [(mark(i), part) for i, part in enumerate(parts)]
    return Imported(
        tvm.IRModule({"main": main, **functions}),
        tuple(array for part in parts for array in part.weights),
        "joint",
        tuple(m + name for m, part in marked for name in part.input_names),
        tuple(m + name for m, part in marked for name in part.output_names),
        {m + name: node for m, part in marked for name, node in part.output_nodes.items()},
    )


def build(parts: Sequence[Imported], model: onnx.ModelProto, **options) -> flexcomp.Artifact:
    """What a user's build makes of these as one network; `model` is any model, which is not imported."""
    with mock.patch.object(builder, "load_shapes", lambda *_: [together(parts)]):
        return flexcomp.build(model, **{"threads": 1, "probe": False} | options)


def resident(parts: Sequence[Imported], model: onnx.ModelProto, target: str, **options) -> flexcomp.Artifact:
    """As `build`, with one plan, which has everything in memory: no kernels for smaller budgets are compiled."""
    with mock.patch.object(builder, "load_shapes", lambda *_: [together(parts)]):
        return builder.prepare(model, target, options_of(**{"threads": 1, "probe": False} | options)).resident()


def _with_functions_marked(mod: tvm.IRModule, prefix: str) -> tuple[relax.Function, dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc]]:
    """main, and the functions that it calls, under names of their own."""
    named, functions = {}, {}
    for own, function in mod.functions_items():
        if own.name_hint != "main":
            named[own] = tvm.ir.GlobalVar(prefix + own.name_hint)
            relax.expr._update_type(named[own], own.ty)
            functions[named[own]] = function.with_attr("global_symbol", prefix + own.name_hint)
    return (_Renamed(named).visit_expr(mod["main"]) if named else mod["main"]), functions


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    def __init__(self, named: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__()
        self.named = named

    def visit_global_var_(self, var: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        return self.named[var]

"""A converter's argument: one ONNX node, with its inputs in Relax."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from flexcomp.deferred import Array
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.node_names import variable_name
from flexcomp.passes.attributes import C_SOURCE, FLOPS, NARROW, WORK, WRITTEN, kernel_attributes
from flexcomp.schedules.generic import guard
from flexcomp.schedules.generic.audit import WORKSPACE_BYTES
from flexcomp.schedules.generic.scratch import Scratch
from flexcomp.schedules.operators import c_kernel
from flexcomp.schedules.operators.c_kernel import CKernel
from flexcomp.schedules.operators.narrow_weights import widening

_OPAQUE = 8  # TVM's kOpaque


@dataclass(frozen=True)
class Tensor:
    """The type of a tensor, and the value of a constant of the model."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    value: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def type(self) -> relax.TensorType:
        return relax.TensorType(self.shape, self.dtype)

    @classmethod
    def of_type(cls, ty: relax.TensorType) -> Tensor:
        """Of a type whose extents are numbers."""
        return cls(tuple(int(d) for d in ty.shape.values), str(ty.dtype))


@dataclass(frozen=True)
class Node:
    """One node during the import."""

    kind: str  # the operator's name
    name: str
    inputs: list[relax.Expr | None]  # None where one is left out
    attrs: dict
    opset: int
    outputs: int  # how many of its results have names, those left out in between included
    bb: relax.BlockBuilder
    weight_of: Callable[[relax.Expr], Array | None]  # the value of a constant or a weight
    declared: tuple[int | None, ...] = ()  # the extents that the graph declares for the first result, where it does
    results: tuple[Tensor, ...] = ()  # of a custom operator, by its shape rule

    @property
    def data(self) -> relax.Expr:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The first input's shape."""
        return shape_of(self.data)

    @property
    def dtype(self) -> str:
        """The first input's element type."""
        return dtype_of(self.data)

    def input(self, i: int) -> relax.Expr | None:
        """Input `i`, or None if it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def tensor(self, i: int) -> Tensor | None:
        """Type and value of input `i`; None if the input is left out."""
        given = self.input(i)
        return None if given is None else Tensor(shape_of(given), dtype_of(given), self.value(i))

    def value(self, i: int) -> np.ndarray | None:
        """The value of input `i`, if it is known; None if the input is left out or computed."""
        given = self.input(i)
        if isinstance(given, relax.ShapeExpr):
            return np.array([int(d) for d in given.values], "int64")
        return None if given is None else self.value_of(given)

    def value_of(self, expr: relax.Expr) -> np.ndarray | None:
        """The value of a constant or a weight."""
        found = self.weight_of(expr)
        return None if found is None else np.asarray(found)

    def weight(self, i: int) -> Array | None:
        """As `value`, of a weight that need not be made."""
        given = self.input(i)
        return None if given is None else self.weight_of(given)

    def text(self, attribute: str, default: str) -> str:
        """The value of an attribute of type string."""
        return self.attrs[attribute].decode() if attribute in self.attrs else default

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """A variable that holds `expr`."""
        return self.bb.emit(expr)

    def call(
        self,
        kernel: tirx.PrimFunc | CKernel,
        inputs: Sequence[relax.Expr],
        results: Sequence[Tensor] | None = None,
        narrow: Sequence[int] = (),
        operations: int = 0,
    ) -> relax.Expr:
        """The result of a kernel, or a tuple of its results.

        A PrimFunc takes the inputs and then the results, all of static shapes.
        `results`: the results of a kernel in C; None: the results of the shape rule.
        `narrow`: positions of inputs that, if they are weights, `build(weights=…)` may keep in fewer bits; the loads of the
        PrimFunc are widened. Other weights are float32, and so are all weights of a kernel in C.
        `operations`: the number of floating-point operations, from which the planner predicts the time.
        """
        if isinstance(kernel, tirx.PrimFunc) and narrow:
            kernel = _narrowing(self, kernel, len(inputs), narrow)
        elif narrow:
            raise self.refuse("its kernel is in C, and reads float32: leave narrow out, or give a PrimFunc")
        return call_kernel(self, kernel, inputs, self.results if results is None else results, operations)

    def refuse(self, reason: str) -> UnsupportedModelError:
        """The error to raise for a node that cannot be compiled; `reason` ends with the way out."""
        return UnsupportedModelError(f"node {self.name!r} ({self.kind}): {reason}")


def call_kernel(
    node: Node, kernel: tirx.PrimFunc | CKernel, inputs: Sequence[relax.Expr], results: Sequence[Tensor], operations: int
) -> relax.Expr:
    """See `Node.call`. Raises UnsupportedModelError, with the node, for a kernel that does not fit its operands."""
    if any(not isinstance(one, relax.Expr) for one in inputs):
        raise node.refuse("its converter gives a kernel an input that is left out, or no Relax expression")
    given = [Tensor(shape_of(one), dtype_of(one)) for one in inputs]
    name = re.sub(r"\W+", "_", node.kind.rpartition(".")[2]).lower()
    if isinstance(kernel, CKernel):
        if not re.fullmatch(r"[A-Za-z_]\w*", kernel.function) or min(kernel.tasks, *kernel.scratch, 1) < 1:
            raise node.refuse(f"its kernel {kernel} is none: give a name of C, and 1 or more for tasks and every scratch")
        types = [(one.shape, one.dtype) for one in given], [(one.shape, one.dtype) for one in results]
        function = c_kernel.call(kernel, *types)
        about = kernel_attributes(name, "C", str(kernel), operations, scratch=kernel.buffers)
        written = list(range(len(given), len(given) + len(results)))
        function = function.with_attrs({**about, C_SOURCE: kernel.encode(), WRITTEN: written})
    elif isinstance(kernel, tirx.PrimFunc):
        # TVM would fuse it, and takes extents of 32 bits for others than those of 64.
        about = {"op_pattern": _OPAQUE, FLOPS: operations, WORK: float(operations)}
        function, results = kernel.with_attrs(about), _checked(node, kernel, given)
        function = function.without_attr("global_symbol")  # it may be that of another function
    else:
        raise node.refuse(f"its converter gives {type(kernel).__name__} for a kernel: give a PrimFunc or a CKernel")
    types = [one.type for one in results]
    call = relax.call_tir(node.bb.add_func(function, name), list(inputs), types if len(types) > 1 else types[0])
    made = node.bb.emit(call, variable_name(node.name, node.kind))
    if len(types) == 1:
        return made
    return relax.Tuple([node.emit(relax.TupleGetItem(made, i)) for i in range(len(types))])


def _narrowing(node: Node, kernel: tirx.PrimFunc, inputs: int, narrow: Sequence[int]) -> tirx.PrimFunc:
    """The kernel with a mark on the inputs in `narrow`."""
    for position in narrow:
        if not 0 <= position < min(inputs, len(kernel.params)):
            raise node.refuse(f"narrow names input {position}, and its kernel has {inputs}")
        if widening(kernel, inputs, {position: "float16"}) is None:
            raise node.refuse(f"its kernel reads input {position} not only element by element: leave it out of narrow")
    return kernel.with_attr(NARROW, list(narrow))


def _checked(node: Node, kernel: tirx.PrimFunc, given: Sequence[Tensor]) -> list[Tensor]:
    """The results of a kernel whose first parameters are `given`."""
    params = []
    for param in kernel.params:
        if not tirx.is_buffer_var(param) or not all(isinstance(extent, tirx.IntImm) for extent in param.shape):
            raise node.refuse(f"its kernel's parameter {param} is no tensor of a static shape")
        params.append(Tensor(tuple(map(int, param.shape)), str(param.dtype)))
    if len(params) <= len(given):
        raise node.refuse(f"its kernel takes {len(params)} tensors, and is given {len(given)} inputs: results come after them")
    for i, (takes, one) in enumerate(zip(params, given, strict=False)):
        if takes != one:
            raise node.refuse(f"its kernel takes {takes} as tensor {i}, and is given {one}")
    if outside := guard.found_outside(kernel):
        raise node.refuse(f"its kernel {outside}")
    taken: list[int] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.AllocBuffer, lambda stmt: taken.append(Scratch.of(stmt.buffer).nbytes)))
    if sum(taken) > WORKSPACE_BYTES:
        raise node.refuse(
            f"its kernel allocates {sum(taken):,} bytes, and a thread has {WORKSPACE_BYTES:,}: make large tensors further "
            "results of the kernel, which the converter does not return"
        )
    return params[len(given) :]


Converter = Callable[[Node], "relax.Expr | None"]


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in expr.ty.shape.values)


def spreads(expr: relax.Expr, shape: tuple[int, ...]) -> bool:
    """Whether a tensor broadcasts to this shape, without making it larger."""
    own = shape_of(expr)
    return len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False))


def require_spread(node: Node, i: int, shape: tuple[int, ...]) -> None:
    """Refuse a node whose input `i` does not broadcast to `shape`, or makes it larger."""
    given = node.input(i)
    if given is not None and not spreads(given, shape):
        raise node.refuse(f"its input {i} of {list(shape_of(given))} does not broadcast to {list(shape)}: correct its shape")


def dtype_of(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def is_float(expr: relax.Expr) -> bool:
    return dtype_of(expr).startswith(("float", "bfloat"))


def scalar(expr: relax.Expr | None) -> float | None:
    """The value of a constant of one element."""
    if isinstance(expr, tvm.ir.GenericConst) and expr.value.numpy().size == 1:
        return expr.value.numpy().item()
    return None

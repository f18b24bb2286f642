"""A kernel in C, and the PrimFunc that calls the C function once for each task:

for task in tasks, in parallel:   function(task, tasks, inputs…, results…, scratch…)

The function's code is compiled for the target and linked to the PrimFunc's (`flexcomp/compiler/c_code.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


@dataclass(frozen=True)
class CKernel:
    """A function in C that computes an operator.

    `source`: defines `void FUNCTION(int32_t task, int32_t tasks, const T *input…, T *result…, float *scratch…)`, with a pointer
    for every input, result and scratch. Tensors are compact, in C order, and begin at multiples of 64 bytes. T is float, double,
    int8_t to uint64_t, or uint8_t for bool.
    `function`: the name of the function.
    `tasks`: the number of calls. Calls run in several threads at the same time, and each computes its part of the results.
    `scratch`: the number of floats of each scratch tensor; all tasks share these tensors.
    `options`: options of the compiler.
    """

    source: str
    function: str
    tasks: int = 1
    scratch: tuple[int, ...] = ()
    options: tuple[str, ...] = ("-O3",)

    def __str__(self) -> str:
        return f"{self.function} in C" + (f", {self.tasks} tasks" if self.tasks > 1 else "")

    @property
    def buffers(self) -> tuple[tuple[int], ...]:
        """Shapes of the scratch."""
        return tuple((count,) for count in self.scratch)

    def encode(self) -> str:
        return json.dumps(astuple(self))

    @classmethod
    def decode(cls, text: str) -> CKernel:
        """The inverse of `encode`."""
        source, function, tasks, scratch, options = json.loads(text)
        return cls(source, function, tasks, tuple(scratch), tuple(options))


Type = tuple[tuple[int, ...], str]  # shape and element type


def call(kernel: CKernel, inputs: Sequence[Type], results: Sequence[Type]) -> tirx.PrimFunc:
    """The PrimFunc (inputs…, results…, scratch…)."""
    taken = [*inputs, *results, *((shape, "float32") for shape in kernel.buffers)]
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        tensors = [T.arg(f"p{i}", T.buffer(shape, dtype)) for i, (shape, dtype) in enumerate(taken)]
        with T.parallel(kernel.tasks) if kernel.tasks > 1 else T.serial(1) as task:
            numbers = tirx.Cast("int32", task), tirx.const(kernel.tasks, "int32")
            T.evaluate(tirx.call_extern("void", kernel.function, *numbers, *(tensor.data for tensor in tensors)))
    return builder.get()


__all__ = ["CKernel", "call"]

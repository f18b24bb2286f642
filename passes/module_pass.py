"""Module passes that can be interrupted."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tvm
from tvm.ir import transform


def module_pass(opt_level: int) -> Callable[[type], type]:
    """As TVM's decorator of that name, for classes; a KeyboardInterrupt in `transform_module` is one outside, too.

    Inside TVM's own code an interruption may make cleaning up raise another error, and C++ loses the cause.
    """

    def decorate(made: type) -> type:
        inner = made.transform_module

        @functools.wraps(inner)
        def transform_module(self: object, mod: tvm.IRModule, context: transform.PassContext) -> tvm.IRModule:
            try:
                return inner(self, mod, context)
            except Exception as error:
                if _is_interrupt(error):
                    raise KeyboardInterrupt from None
                raise

        made.transform_module = transform_module
        return transform.module_pass(made, opt_level=opt_level)

    return decorate


def _is_interrupt(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None

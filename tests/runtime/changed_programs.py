"""Programs that were changed, opened on the library and the weights of the right one; whether one did harm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.program import Layer, Program, program_bytes
from flexcomp.program.digest import WeightsDigest
from flexcomp.program.program_bytes import PROGRAM_KIND
from tests.by_hand import encode_program


def close(got, expected: np.ndarray) -> bool:
    return np.abs(np.asarray(got) - expected).max() <= 1e-5 * np.abs(expected).max()


def opener(path: Path, digest: WeightsDigest) -> Callable:
    """A function of a program that gives a session's module. The library stays loaded as long as it does."""
    runtime_ext.register()
    create = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")
    library = tvm_ffi.load_module(str(path))
    records: dict[int, tuple[Layer, bytes]] = {}  # of layers that many changed programs have, by identity

    class Writer(program_bytes._Writer):
        def layer(self, layer: Layer) -> None:
            if id(layer) not in records:
                begin = len(self.data)
                super().layer(layer)
                records[id(layer)] = layer, bytes(self.data[begin:])
            else:
                self.data += records[id(layer)][1]

    def open_session(program: Program):
        assert library is not None
        with mock.patch.object(program_bytes, "_Writer", Writer):
            module = create(encode_program(program, digest))
        return module.get_function("open")(str(path.with_suffix(".weights")), f'{{"library_path": "{path}"}}')

    return open_session


def is_refused(open_session: Callable, program: Program, inputs: Mapping, expected: np.ndarray, inferences: int) -> bool:
    """Whether it is an error when it is written or opened; otherwise so many inferences are right."""
    try:
        session = open_session(program)
    except ValueError:
        return True
    except RuntimeError as error:
        assert error.__tvm_ffi_error__.kind == "ArtifactError"
        return True
    arrays = [tvm_ffi.from_dlpack(array) for array in inputs.values()]
    for _ in range(inferences):
        result = np.full(expected.shape, np.nan, "f4")
        session.get_function("run")(*arrays, tvm_ffi.from_dlpack(result))
        assert close(result, expected), program.rungs
    session.get_function("close")()
    return False

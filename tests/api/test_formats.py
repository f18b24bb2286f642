"""Programs of older formats: the C interface reads them itself, and others run with the runtime that their library has.

`format_10.zip` holds a program and its weights as the first version with format 10 wrote them: four layers max(x, 0) · A, then
y · s / 2 + x, with plans that stream weights, and that keep some or all of them.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import zipfile
from ctypes import byref, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest

from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError
from flexcomp.program import decode_program
from flexcomp.program.program_bytes import OLDEST_VERSION, PROGRAM_VERSION
from flexcomp.program.signature import of_layer, symbol
from tests.api import bindings as api
from tests.api.bindings import refused

HERE = Path(__file__).parent
HEADERS = Path(runtime_ext.__file__).parent / "src" / "kernels"
N, LAYERS = 64, 4


@pytest.fixture(scope="module")
def kept():
    with zipfile.ZipFile(HERE / "format_10.zip") as archive:
        return archive.read("program"), archive.read("weights")


@pytest.fixture(scope="module")
def network(kept, tmp_path_factory):
    """The linked network, and its weights file."""
    folder, (program, weights) = tmp_path_factory.mktemp("format"), kept
    layers = {layer.name: f'"__tvm_ffi_{symbol(layer.kernel, of_layer(layer))}"' for layer in decode_program(program).layers}
    names = {"PRODUCT": layers["mv0"], "SCALED": layers["mul"], "SUM": layers["add"], "PROGRAM": ",".join(map(str, program))}
    (folder / "names.h").write_text("".join(f"#define {name} {value}\n" for name, value in names.items()))
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", "-include", "names.h"]
    subprocess.run([*command, HERE / "format_10.c", "-o", "old.so"], cwd=folder, check=True)
    (folder / "old.weights").write_bytes(weights)
    found = ctypes.CDLL(str(folder / "old.so")).flexcomp_network_old
    return ctypes.cast(found, ctypes.POINTER(api.Network)), folder / "old.weights"


def expected(x):
    index = np.arange(LAYERS * N * N)
    y = x
    for matrix in (((index * 7 + index // 64 * 3) % 17 - 8) / 64).reshape(LAYERS, N, N):
        y = np.maximum(y, 0) @ matrix
    return y * ((np.arange(N) % 5 - 2) / 2) * 0.5 + x


def test_the_oldest_format_is_the_kept_one(kept):
    assert struct.unpack_from("<I", kept[0], 8) == (OLDEST_VERSION,)


def test_a_network_of_the_oldest_format_runs_in_all_its_budgets(network):
    session, options = c_void_p(), api.Options(weights=str(network[1]).encode(), flags=api.VERIFY)
    api.done("open_linked", network[0], byref(options), byref(session))
    try:
        count = api.given("budget_count", c_uint32, session, 0)
        assert count == 3
        for index in [*range(count), 0]:
            info = api.BudgetInfo()
            api.done("describe_budget", session, 0, index, byref(info))
            api.done("set_budget", session, info.budget)
            for seed in range(3):
                x, out = np.random.default_rng(seed).standard_normal(N).astype("f4"), np.empty(N, "f4")
                assert api.run(session, [x], [out]) == api.OK
                np.testing.assert_allclose(out, expected(x), rtol=1e-5, atol=1e-5)
            read = api.given("get_stats", api.Stats, session).bytes_read
            assert (read == 0) == (index == count - 1) and read >= info.streamed
    finally:
        api.call("close", session)


@pytest.mark.parametrize(
    ("number", "age", "way_out"),
    [(77, "a newer", "update flexcomp"), (12, "a newer", "update flexcomp"), (9, "an older", "build the network again")],
)
def test_formats_out_of_the_range_are_refused_with_both_versions(number, age, way_out):
    linked = api.Network(kind=f"flexcomp.program.{number}".encode())
    says = f"{age} version of flexcomp: its program has format {number}, and flexcomp "
    refused(api.UNSUPPORTED, "open_linked", byref(linked), None, byref(c_void_p()), says=says)
    assert f" runs formats {OLDEST_VERSION} to {PROGRAM_VERSION}: {way_out}" in api.message()


def test_python_reads_the_same_range(kept):
    assert len(decode_program(kept[0]).rungs) == 3
    other = bytearray(kept[0])
    struct.pack_into("<I", other, 8, OLDEST_VERSION - 1)
    with pytest.raises(ArtifactError, match=f"has format 9, this flexcomp reads formats {OLDEST_VERSION} to {PROGRAM_VERSION}"):
        decode_program(bytes(other))

"""Readers that go away, streams that are closed or full, names that are no text."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp

FLEXCOMP = [sys.executable, "-m", "flexcomp"]


def shell(line: str, *args: object) -> subprocess.CompletedProcess:
    """Run a line of sh, in which "$@" is flexcomp with these arguments."""
    command = ["sh", "-c", line, "sh", *FLEXCOMP, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("options", [["inspect", "--json"], ["inspect"], ["plan"]])
def test_a_reader_that_goes_away(library, options):
    done = shell('{ "$@"; echo "ended with $?" >&2; } | true', options[0], library, *options[1:])
    assert done.stderr == "ended with 1\n"  # and not a word


def test_a_reader_of_some_lines(library):
    done = shell('"$@" | head -2', "inspect", library)
    assert "layers" in done.stdout and done.stderr == ""


def test_stdout_that_is_closed(library):
    done = shell('"$@" >&-', "inspect", library)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_streams_closed_while_a_file_is_written(library, tmp_path):
    """Nothing that is printed gets into the file, which could otherwise be stdout to whoever prints."""
    done = shell('"$@" <&- >&- 2>&-', "plan", library, "--trace", tmp_path / "a.json")
    assert done.returncode == 0
    assert (tmp_path / "a.json").read_text().startswith('{"traceEvents"')


def test_a_disk_that_is_full(library):
    done = shell('"$@" > /dev/full', "inspect", library, "--json")
    assert done.returncode == 1
    assert done.stderr == "error: cannot print the result: No space left on device\n"


def test_a_name_that_is_no_text(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.so"
    done = subprocess.run([*map(os.fsencode, FLEXCOMP), b"run", name], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the argument ") and done.stderr.endswith("is not UTF-8: rename the file\n")


def test_a_folder_that_is_no_text(library, tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    for suffix in (".so", ".weights"):
        os.link(library.with_suffix(suffix), folder + b"/x" + suffix.encode())
    command = [sys.executable, "-m", "flexcomp", "inspect", "x.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or (done.returncode == 2 and done.stderr.count("\n") == 1 and "not UTF-8" in done.stderr)


def test_spaces_in_names(cli, model, tmp_path):
    folder = tmp_path / "my networks"
    done = cli("build", model, "-o", folder / "a net.so")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a net.so", "a net.weights"]
    assert cli("run", folder / "a net.so", "--output-dir", folder / "out puts").returncode == 0


def test_a_terminal_without_our_signs(library):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*FLEXCOMP, "inspect", str(library)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_tvm_says_nothing(tmp_path, capfd):
    """It warns of every index that it does not check, on stderr and from C++."""
    nodes = [helper.make_node("Gather", ["w", "i"], ["g"]), helper.make_node("Gather", ["g", "j"], ["y"], axis=1)]
    ports = [helper.make_tensor_value_info(name, TensorProto.INT64, [3]) for name in "ij"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph(nodes, "net", ports, [output], [numpy_helper.from_array(np.ones((50, 8), "f4"), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx")
    flexcomp.build(tmp_path / "net.onnx", kernels="smallest")
    assert capfd.readouterr() == ("", "")
    done = subprocess.run(
        [*FLEXCOMP, "build", tmp_path / "net.onnx", "-o", tmp_path / "net.so"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and all(line.startswith("net.onnx: ") for line in done.stderr.splitlines()), done.stderr

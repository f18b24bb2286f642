"""`flexcomp build`: what it writes, and how it refuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.units import Units, enough, human_bytes
from tests import padded, shaped
from tests.cli import calls


def test_writes_the_library_and_its_weights(library, built):
    assert library.exists()
    assert library.with_suffix(".weights").exists()
    assert f"wrote {library}" in built.stdout


def test_ends_in_a_few_lines(library, built, ladder):
    """Files and sizes, the smallest budget and what sets it, latency at up to four budgets, what to type next."""
    lines = built.stdout.splitlines()
    assert 6 <= len(lines) <= 9
    assert all(len(line) <= 80 for line in lines if str(library) not in line)
    assert lines[0] == "wrote " + " and ".join(
        f"{path} ({human_bytes(path.stat().st_size)})" for path in (library, library.with_suffix(".weights"))
    )
    assert lines[1].startswith(f"the smallest budget is {enough(ladder[0])}, set by layer ")
    plans = [line for line in lines if " ms in " in line]
    assert len(plans) == len({line.split(" in ")[1] for line in plans}) and 2 <= len(plans) <= 4
    assert plans[0].endswith("the smallest") and plans[-1].endswith("everything resident")
    assert any(line.endswith("as asked") for line in plans)
    command = lines[-2].removeprefix("next: ")
    done = calls.run("-m", *shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert "60 % of everything resident" in done.stdout


def test_answers_in_the_units_that_were_asked_in(cli, model, tmp_path):
    for budget, unit, wrong in (("0.4MB", "kB", "iB"), ("0.4MiB", "KiB", "kB")):
        done = cli("build", model, "-o", tmp_path / "x.so", "--budget", budget)
        assert done.returncode == 0, done.stderr
        assert unit in done.stdout and wrong not in done.stdout
        assert f"--budget {enough(400_000, Units.DECIMAL).replace(' ', '') if unit == 'kB' else '409.60KiB'}" in done.stdout


def test_weights_in_fewer_bits(cli, model, library, tmp_path):
    narrow, mixed = tmp_path / "narrow.so", tmp_path / "mixed.so"
    assert cli("build", model, "-o", narrow, "--weights", "int8").returncode == 0
    done = cli("build", model, "-o", mixed, "--weights", "int8", "--weights", "nothing*=float32")
    assert done.returncode == 2 and "no layer with weights is called 'nothing*'; there are" in done.stderr
    auto = cli("build", model, "-o", mixed, "--weights", "auto", "--max-error", "0.5")
    assert auto.returncode == 0, auto.stderr
    wrong = cli("build", model, "-o", mixed, "--weights", "auto", "--max-error", "2")
    assert wrong.returncode == 2 and "max_error=2.0 is not a part of the largest output" in wrong.stderr
    sizes = [path.with_suffix(".weights").stat().st_size for path in (narrow, library)]
    assert sizes[0] < 0.3 * sizes[1]


def test_the_storage_of_the_output_is_measured_once(model, tmp_path, monkeypatch):
    """What was found is said, remembered, planned with, and can be given back; both builds are the same bytes.

    The kernels' rates are those of a quiet machine: figures of a busy one are not remembered.
    """
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    quiet = (
        "from flexcomp.compiler import kernel_rates, probing; from flexcomp.cli import main\n"
        "probing.measure_kernels = lambda target: kernel_rates.KernelRates(1e11, 2e10)\n"
        "main()"
    )
    builds = []
    for name, options in (("a", ["--probe"]), ("b", ["--probe"]), ("c", ["--profile", None]), ("d", ["--no-probe"])):
        (tmp_path / name).mkdir()
        kept = [*(tmp_path / "cache" / "storage").glob("*.json")]
        more = ["-o", tmp_path / name / "x.so", *(kept[0] if one is None else one for one in options)]
        done = calls.run("-c", quiet, "build", model, *more)
        assert done.returncode == 0, done.stderr
        builds.append((done.stderr, (tmp_path / name / "x.so").read_bytes()))
    said, (first, again, given, _) = [stderr for stderr, _ in builds], [library for _, library in builds]
    assert "(measured; " in said[0] and "(remembered; " in said[1]
    assert not any("storage: " in one for one in said[2:])
    assert first == again == given


def test_storage_that_cannot_be_measured_is_guessed(tmp_path, monkeypatch):
    """Unless it was asked for. The folder of the output is made by the build."""
    g = Graph("small", seed=1)
    onnx.save(g.model(g.dense(g.input("x", (1, 64)), 64), (1, 64)), tmp_path / "small.onnx")
    full = (
        "import errno, shutil; shutil.disk_usage = lambda folder: (_ for _ in ()).throw(OSError(errno.ENOSPC, 'No space left'))\n"
        "import flexcomp.files; flexcomp.files.require_space = lambda *_: None\n"
        "from flexcomp.cli import main; main()"
    )
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLEXCOMP_PROBE")
    for options, code in (([], 0), (["--probe"], 2)):
        library = tmp_path / "new" / "folder" / "x.so"
        command = [sys.executable, "-c", full, "build", tmp_path / "small.onnx", "-o", library, *options]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == code and "cannot measure the storage of" in done.stderr, done.stderr
        assert ("planned for guessed rates" in done.stderr) == (code == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "many"], "cannot read the budget"),
        (["--input", "x=1,3"], "is not NAME:1,3,224,224"),
        (["--input", "x:1,0,2"], "is not NAME:1,3,224,224"),
        (["--threads", "0"], "threads"),
        (["--no-such-option"], "no-such-option"),
        (["--weights", "int3"], "'int3' is not known: it is one of float32, float16, bfloat16, int8, int4"),
        (["--weights", "/head/*=half"], "'half' is not known"),
        (["--arithmetic", "half"], "'half' is not known: it is one of float32, float16"),
    ],
)
def test_wrong_usage_ends_with_2(cli, model, tmp_path, options, message):
    done = cli("build", model, "-o", tmp_path / "out.so", *options)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("target", "who"), [("native", "a CPU computes"), ("cuda -arch=sm_75", "this one is sm_75")])
def test_tf32_is_of_tensor_cores(cli, model, tmp_path, target, who):
    done = cli("build", model, "-o", tmp_path / "x.so", "--target", target, "--tf32")
    assert done.returncode == 2 and "tf32 is what" in done.stderr and who in done.stderr


@pytest.mark.parametrize(
    ("target", "who"), [("llvm -mcpu=x86-64-v3", "is for AArch64, and x86 computes"), ("raspberry-pi-4b", "needs half precision")]
)
def test_float16_is_of_half_precision(cli, model, tmp_path, target, who):
    done = cli("build", model, "-o", tmp_path / "x.so", "--target", target, "--arithmetic", "float16")
    assert done.returncode == 2 and who in done.stderr


def test_the_output_must_be_a_library(cli, model, tmp_path):
    done = cli("build", model, "-o", tmp_path / "out.bin")
    assert done.returncode == 2
    assert "does not end in .so" in done.stderr


def assert_one_line_error(done, code, *words):
    assert done.returncode == code, done.stderr
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in last


def test_a_missing_model_ends_with_3(cli, tmp_path):
    done = cli("build", tmp_path / "absent.onnx", "-o", tmp_path / "out.so")
    assert_one_line_error(done, 3, "absent.onnx")


def test_an_output_that_cannot_be_written_ends_with_3_before_the_work(cli, model, tmp_path):
    (tmp_path / "folder.so").mkdir()
    for output, reason in (model / "out.so", "is not a folder"), (tmp_path / "folder.so", "it is a folder"):
        done = cli("build", model, "-o", output)
        assert_one_line_error(done, 3, f"cannot write {output}", reason)
        assert "passes" not in done.stderr


def test_a_broken_model_ends_with_3(cli, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"this is not a network")
    done = cli("build", tmp_path / "broken.onnx", "-o", tmp_path / "out.so")
    assert_one_line_error(done, 3)


def test_an_impossible_budget_ends_with_3(cli, model, tmp_path):
    done = cli("build", model, "-o", tmp_path / "out.so", "--budget", "1kB")
    assert_one_line_error(done, 3, "1.00 kB is too small")
    assert not (tmp_path / "out.so").exists()


def test_an_unknown_operator_ends_with_3(cli, tmp_path):
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="odd", domain="example")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([node], "odd", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "odd.onnx")
    done = cli("build", tmp_path / "odd.onnx", "-o", tmp_path / "out.so")
    assert_one_line_error(done, 3, "Frobnicate")


def test_a_dynamic_axis_needs_a_shape(cli, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    graph = helper.make_graph([node], "dynamic", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "dynamic.onnx")
    done = cli("build", tmp_path / "dynamic.onnx", "-o", tmp_path / "out.so")
    assert_one_line_error(done, 3, "input_shapes")
    done = cli("build", tmp_path / "dynamic.onnx", "-o", tmp_path / "out.so", "--input", "x:4,8")
    assert done.returncode == 0, done.stderr


def test_pads(cli, tmp_path):
    onnx.save(padded.masked_encoder(), tmp_path / "masked.onnx")
    options = ["--threads", "1", "--no-probe", "--input", "ids:1,n", "--input", "mask:1,n", "--shape", "n=24"]
    done = cli("build", tmp_path / "masked.onnx", "-o", tmp_path / "m.so", *options, "--pad", "ids=0", "--pad", "mask=0")
    assert done.returncode == 0, done.stderr
    with flexcomp.load(tmp_path / "m.so") as session:
        assert session.run(np.ones((1, 4), "int64"), np.ones((1, 4), "int64"))["rows"].shape == (1, 4, 32)
    shown = cli("inspect", tmp_path / "m.so").stdout.splitlines()
    assert "input ids is padded with 0 to the next n" in shown
    facts = json.loads(cli("inspect", tmp_path / "m.so", "--json").stdout)
    assert facts["pad"]["outputs"] == {"rows": [None, "n", None]}
    leaking = cli("build", tmp_path / "masked.onnx", "-o", tmp_path / "m.so", *options, "--pad", "ids=0", "--pad", "mask=1")
    assert leaking.returncode == 2 and 'error: pad: the output "rows" moves by' in leaking.stderr
    wrong = cli("build", tmp_path / "masked.onnx", "-o", tmp_path / "m.so", *options, "--pad", "ids=nan")
    assert wrong.returncode == 2 and "'ids=nan' is not NAME=0" in wrong.stderr


def test_input_values(cli, tmp_path):
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    info = helper.make_tensor_value_info
    given = [info("x", TensorProto.FLOAT, (2, 3)), info("scale", TensorProto.FLOAT, ("k",))]
    graph = helper.make_graph([node], "scaled", given, [info("y", TensorProto.FLOAT, (2, 3))])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "scaled.onnx")
    options = ["-o", tmp_path / "scaled.so", "--threads", "1", "--no-probe"]
    done = cli("build", tmp_path / "scaled.onnx", *options, "--input-value", "scale=1,2.5,3")
    assert done.returncode == 0, done.stderr
    with flexcomp.load(tmp_path / "scaled.so") as session:
        np.testing.assert_allclose(session.run(np.ones((2, 3), "f4"))["y"][0], [1, 2.5, 3])
    for wrong, code, said in (("scale=fast", 2, "'scale=fast' is not NAME=16000"), ("rate=1", 2, "input_values names 'rate'")):
        done = cli("build", tmp_path / "scaled.onnx", *options, "--input-value", wrong)
        assert done.returncode == code and said in done.stderr


def test_shapes(cli, tmp_path):
    onnx.save(shaped.encoder(), tmp_path / "encoder.onnx")
    library = tmp_path / "encoder.so"
    options = ["--threads", "1", "--no-probe", "--input", "ids:1,n"]
    done = cli("build", tmp_path / "encoder.onnx", "-o", library, *options, "--shape", "n=16,64")
    assert done.returncode == 0, done.stderr
    facts = json.loads(cli("inspect", library, "--json", "--shape", "n=16").stdout)
    assert facts["inputs"][0]["shape"] == [1, 16]
    assert [one["extents"] for one in facts["shapes"]] == [{"n": 64}, {"n": 16}]
    assert facts["min_budget_bytes"] == facts["shapes"][1]["min_budget_bytes"] < facts["shapes"][0]["min_budget_bytes"]
    shown = cli("inspect", library).stdout
    assert "n=64" in shown and "input ids: int64[1×64]" in shown
    refused = cli("inspect", library, "--shape", "n=17")
    assert refused.returncode == 2 and "no shape is n=17: the library holds n=64; n=16" in refused.stderr
    unnamed = cli("build", tmp_path / "encoder.onnx", "-o", library, *options)
    assert unnamed.returncode == 2 and "ids:1,n" in unnamed.stderr
    wrong = cli("build", tmp_path / "encoder.onnx", "-o", library, *options, "--shape", "n=x")
    assert wrong.returncode == 2 and "'n=x' is not NAME=16,64" in wrong.stderr

"""Wrong usage is one line that lists what is known; help lists it, too, and fits a terminal; shells complete it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.compiler.known import KERNELS
from flexcomp.demo import zoo
from flexcomp.device.presets import PRESETS
from flexcomp.plan import STRATEGIES
from tests.cli.calls import environment_of_shells

COMMANDS = (
    "build", "tune", "profile", "cache", "run", "generate", "serve", "demo", "inspect", "plan", "share", "bench", "package",
    "help", "remote",
)  # fmt: skip


def assert_one_line(done, code, *words):
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "Usage:" not in done.stdout
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bild"], ["'bild'", "Did you mean 'build'?", *COMMANDS]),
        (["frobnicate"], ["'frobnicate'; commands are", *COMMANDS]),
        (["remote", "rum"], ["'rum'", "devices, run, measure, profile, server"]),
        (["build"], ["Missing argument", "see flexcomp build --help"]),
        (["build", "x.onnx"], ["'--output'", "see flexcomp build --help"]),
        (["build", "x.onnx", "-o", "x.so", "--bugdet", "1MB"], ["--bugdet", "--budget"]),
        (["build", "x.onnx", "-o", "x.so", "--strategy", "bst"], ["'--strategy': 'bst' is not known", ", ".join(STRATEGIES)]),
        (["build", "x.onnx", "-o", "x.so", "--kernels", "fast"], ["'--kernels': 'fast' is not known", ", ".join(KERNELS)]),
        (["build", "x.onnx", "-o", "x.so", "--threads", "two"], ["'--threads'", "integer"]),
        (["run", "x.so", "--budget", "10T"], ["'--budget'", '"64MB"', "10%", '"min"', '"all"', "see flexcomp run --help"]),
        (["demo", "squeeze"], ["'squeeze' is not known", ", ".join(zoo.NAMES)]),
        (["help", "bild"], ["'bild' is not known", ", ".join(COMMANDS)]),
        (["help", "remote", "rum"], ["'rum' is not known", "devices, run"]),
        (["--colour"], ["--colour"]),
    ],
)
def test_wrong_usage_is_one_line(cli, args, words):
    assert_one_line(cli(*args), 2, *words)


def test_an_unknown_preset_lists_those_that_are_known(cli, model, tmp_path):
    done = cli("build", model, "-o", tmp_path / "x.so", "--target", "raspberry-pi-9")
    assert_one_line(done, 3, "raspberry-pi-9", ", ".join(PRESETS))


def test_an_unknown_input_lists_those_that_are_known(cli, library, model, image, tmp_path):
    assert_one_line(cli("run", library, "--input", f"y={image[0]}"), 2, "no input called y; it has x")
    done = cli("build", model, "-o", tmp_path / "x.so", "--input", "y:1,3,32,32")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: input_shapes names 'y'")
    assert "'x'" in done.stderr


def unknown_operator(kind: str, domain: str = "") -> onnx.ModelProto:
    node = helper.make_node(kind, ["x"], ["y"], name="odd", domain=domain)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    imports = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(helper.make_graph([node], "odd", ports[:1], ports[1:]), opset_imports=imports, ir_version=8)


def test_an_unknown_operator_says_where_the_known_ones_are_listed(cli):
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"'odd': Rellu .*did you mean .*Relu.*flexcomp help operators"):
        flexcomp.build(unknown_operator("Rellu"))
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"example\.Relu \(node 'odd'\) .*flexcomp help operators"):
        flexcomp.build(unknown_operator("Relu", "example"))
    listed = cli("help", "operators").stdout.replace("\n", " ").split(", ")
    assert {"Conv", "Gemm", "Softmax"} <= {name.strip() for name in listed} and "TfIdfVectorizer" not in listed


def test_unknown_names_in_python():
    with pytest.raises(flexcomp.InputError, match=f"squeeze.*{', '.join(zoo.NAMES)}"):
        zoo.load("squeeze")
    with pytest.raises(flexcomp.InputError, match=f"bst.*{', '.join(STRATEGIES)}"):
        flexcomp.build("x.onnx", strategy="bst")
    with pytest.raises(flexcomp.InputError, match=f"fast.*{', '.join(KERNELS)}"):
        flexcomp.build("x.onnx", kernels="fast")


def test_help_of_build_lists_names_and_defaults(cli):
    text = cli("build", "--help-all").stdout
    plain = re.sub(r"-\s+", "-", re.sub(r"\s+", " ", text))  # names of devices may be cut at a hyphen
    for names in (STRATEGIES, KERNELS, PRESETS):
        assert ", ".join(names) in plain
    for default in ("native", "best", "auto"):
        assert f"[default: {default}]" in plain


def test_help_of_build_shows_ten_options(cli):
    def options(text):
        return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M))

    short, long = cli("build", "--help").stdout, cli("build", "--help-all").stdout
    assert cli("help", "build").stdout == short
    assert len(options(short) - {"--help", "--help-all"}) == 10
    assert options(long) > options(short) and "--probe" in options(long)
    assert {"Options:", "Weights:", "Planning:"} <= set(long.splitlines())


def test_commands_are_listed_in_groups(cli):
    lines = cli("--help").stdout.splitlines()
    assert {f"{group}:" for group in ("Compile", "Run", "Look inside", "Devices", "Help")} <= set(lines)
    listed = {line.split()[0] for line in lines[lines.index("Compile:") :] if line.startswith("  ")}
    assert listed == set(COMMANDS)


@pytest.mark.parametrize("words", [(), ("remote",), *((name,) for name in COMMANDS), ("remote", "run"), ("remote", "server")])
def test_help_fits_a_terminal(cli, words):
    done = cli(*words, "--help")
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "..." not in done.stdout.partition("Options:")[2].replace("ARGS]...", "")  # texts of commands are whole


BASH = """
eval "$(_FLEXCOMP_COMPLETE=source_bash flexcomp)"
complete -p flexcomp >&2
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_flexcomp_completion flexcomp
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bu"], ["build"]),
        ([""], [*COMMANDS]),
        (["remote", "m"], ["measure"]),
        (["build", "--strat"], ["--strategy"]),
        (["build", "--strategy", ""], [*STRATEGIES]),
        (["build", "net.onnx", "--kernels", "f"], ["fastest", "flexnn"]),
        (["build", "--target", "rasp"], ["raspberry-pi-3b", "raspberry-pi-4b", "raspberry-pi-5"]),
        (["run", "net.so", "--budget", ""], ["min", "10%", "25%", "50%", "all"]),
        (["remote", "run", "net.so", "--budget", "m"], ["min"]),
        (["demo", "inception"], ["inception_v1", "inception_v2"]),
        (["help", "op"], ["operators"]),
        (["run", "some"], []),  # readline completes files itself
    ],
)
def test_completion_by_bash(words, expected):
    """The function that `--show-completion` prints, as bash calls it; the first time of the command that is installed."""
    bash = shutil.which("bash")
    assert bash, "bash is missing: apt-get install bash"
    environment = environment_of_shells()
    if words == ["bu"]:
        environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    command = [bash, "--norc", "-c", BASH, "bash", "flexcomp", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "complete -o default -F _flexcomp_completion flexcomp\n"
    assert sorted(done.stdout.split()) == sorted(expected)


def test_threads_beyond_the_cores_are_said(cli, model, library, tmp_path, caplog):
    cores = len(os.sched_getaffinity(0))
    shared = f"{cores + 1} threads share {cores} core"
    done = cli("run", library, "--threads", cores + 1)
    assert done.returncode == 0 and done.stderr.startswith(f"note: {shared}")
    assert cli("run", library, "--threads", cores).stderr == ""
    done = cli("build", model, "-o", tmp_path / "x.so", "--threads", cores + 1)
    assert done.returncode == 0 and f"{cores + 1} threads would share the target's {cores} core" in done.stderr
    with flexcomp.load(library, threads=cores):
        assert caplog.text == ""
    with flexcomp.load(library, threads=cores + 1) as session:
        session.run(np.zeros((1, 3, 32, 32), "f4"))
    assert shared in caplog.text

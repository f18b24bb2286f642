"""`flexcomp inspect`: the JSON that scripts rely on, tables, pictures."""

from __future__ import annotations

import json

import onnx
import pytest

import flexcomp
from tests.cli.conftest import tiny_network
from tests.operators.recurrent import Case


@pytest.fixture(scope="module")
def facts(cli, library):
    done = cli("inspect", library, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_keys(facts):
    assert facts.keys() >= {"target", "inputs", "outputs", "min_budget_bytes", "resident_bytes", "ladder", "layers"}
    for rung in facts["ladder"]:
        assert rung.keys() >= {"budget_bytes", "arena_bytes", "pinned_bytes", "streamed_bytes", "predicted_ms"}


def test_ports(facts):
    assert facts["inputs"] == [{"name": "x", "shape": [1, 3, 32, 32], "dtype": "float32"}]
    assert facts["outputs"] == [{"name": "output", "shape": [1, 128], "dtype": "float32"}]


def test_the_ladder_rises_from_the_minimum_to_everything_resident(facts):
    budgets = [rung["budget_bytes"] for rung in facts["ladder"]]
    assert budgets == sorted(set(budgets))
    assert budgets[0] == facts["min_budget_bytes"]
    assert budgets[-1] == facts["resident_bytes"]
    assert all(rung["arena_bytes"] <= rung["budget_bytes"] for rung in facts["ladder"])
    assert facts["ladder"][-1]["streamed_bytes"] == 0


def test_the_asked_budget_is_planned_for():
    """For a processor for which its plan is not that of a smaller budget, too."""
    program = flexcomp.build(tiny_network(), target="llvm -mcpu=x86-64-v4", threads=2, budget=0.5).program
    asked = 0.5 * program.rungs[-1].budget
    assert any(abs(rung.budget - asked) <= 4096 for rung in program.rungs)


def test_layers(facts):
    assert sum(layer["weights_bytes"] > 0 for layer in facts["layers"] if not layer["band_of"]) == 3
    assert all(layer["implementation"] for layer in facts["layers"])
    assert all(len(layer["slices"]) == len(facts["ladder"]) for layer in facts["layers"])


def test_tables_and_pictures(cli, library, tmp_path):
    for budget in ([], ["--budget", "0.6"], ["--budget", "none"]):
        picture = tmp_path / f"plan{len(budget)}.png"
        done = cli("inspect", library, "--picture", picture, *budget)
        assert done.returncode == 0, done.stderr
        assert ("budgets" if not budget else "steps") in done.stdout
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_layers_and_plans_name_the_nodes_of_the_model(cli, library, facts):
    """Alternatives and bands too; of a layer of several nodes the one that it is for."""
    nodes = {layer["name"].partition("[")[0]: layer["node"] for layer in facts["layers"]}
    assert set(nodes.values()) == {"conv0", "conv2", "maxpool4", "gemm6"}
    assert all(node == "gemm6" for name, node in nodes.items() if name.startswith("matmul"))
    done = cli("inspect", library)
    assert all(node in done.stdout for node in nodes.values())


def test_a_budget_shows_its_plan(cli, library, facts):
    done = cli("inspect", library, "--budget", "min", "--json")
    plan = json.loads(done.stdout)["plan"]
    rung = facts["ladder"][0]
    assert (plan["budget_bytes"], plan["arena_bytes"]) == (rung["budget_bytes"], rung["arena_bytes"])
    assert sum(layer["steps"] for layer in plan["layers"]) == rung["steps"]
    assert sum(layer["loaded_bytes"] for layer in plan["layers"]) == rung["streamed_bytes"]
    assert sum(layer["kept_bytes"] for layer in plan["layers"]) == rung["pinned_bytes"]
    times = [layer["predicted_ms"] + layer["waiting_ms"] for layer in plan["layers"]]
    assert sum(times) == pytest.approx(rung["predicted_ms"])
    assert {layer["node"] for layer in plan["layers"]} == {"conv0", "conv2", "maxpool4", "gemm6"}
    done = cli("inspect", library, "--budget", "min")
    assert done.returncode == 0, done.stderr
    assert "budgets" not in done.stdout and "gemm6" in done.stdout and f"{rung['steps']} steps" in done.stdout


def test_state_is_named_with_its_bytes(cli, tmp_path):
    case = Case(steps=1, width=4, hidden=8, optional=("initial_h", "initial_c"), outputs=("Y", "Y_h", "Y_c"))
    onnx.save(case.model(), tmp_path / "cell.onnx")
    states = ("--state", "Y_h=initial_h", "--state", "Y_c=initial_c")
    done = cli("build", tmp_path / "cell.onnx", "-o", tmp_path / "cell.so", "--threads", 1, *states)
    assert done.returncode == 0, done.stderr
    facts = json.loads(cli("inspect", tmp_path / "cell.so", "--json").stdout)
    assert facts["states"][0] == {"name": "initial_h", "output": "Y_h", "shape": [1, 1, 8], "dtype": "float32"}
    assert [port["name"] for port in facts["inputs"] + facts["outputs"]] == ["X", "Y"] and facts["state_bytes"] == 4096
    text = cli("inspect", tmp_path / "cell.so", "--picture", tmp_path / "plan.png").stdout
    assert "state Y_c → initial_c: float32[1×1×8]" in text and "state in all: 4.00 KiB of every budget" in text
    for wrong, said in (
        (("--state", "Y_h"), "is not OUTPUT=INPUT"), (("--state", "Y_h=X"), "given twice"),
        (("--state-type", "int7"), "--state-type"), (("--state-type", "initial_h=int8"), "'initial_h' is read by"),
    ):  # fmt: skip
        done = cli("build", tmp_path / "cell.onnx", "-o", tmp_path / "two.so", "--state", "Y_h=initial_h", *wrong)
        assert done.returncode == 2 and said in " ".join(done.stderr.replace("│", " ").split())


def test_a_picture_of_weights_needs_a_choice_by_errors(cli, library, tmp_path):
    done = cli("inspect", library, "--weights-picture", tmp_path / "weights.png")
    assert done.returncode == 4 and "were not chosen by errors: build it with --weights auto" in done.stderr


def test_wrong_usage_ends_with_2(cli, library, tmp_path):
    done = cli("inspect", library, "--picture", tmp_path / "plan.docx")
    assert done.returncode == 2 and done.stderr.startswith("error: pictures are written as ")


def test_the_version(cli):
    assert cli("--version").stdout == f"flexcomp {flexcomp.__version__}\n"


def test_what_is_no_library_ends_with_4(cli, tmp_path):
    (tmp_path / "odd.so").write_bytes(b"no library")
    for name in ("odd.so", "absent.so"):
        done = cli("inspect", tmp_path / name)
        assert done.returncode == 4, done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("error: ")
        assert name in line

"""`flexcomp share`: several libraries under one budget."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def pair(library, tmp_path):
    for name in "ab":
        shutil.copy(library, tmp_path / f"{name}.so")
    return tmp_path / "a.so", tmp_path / "b.so"


def shared(cli, *args):
    done = cli("share", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_networks_that_take_turns_share_the_working_range(cli, pair, ladder):
    facts = shared(cli, *pair, "--budget", "min")
    assert facts["bytes"] == facts["budget_bytes"] < 2 * ladder[0]
    assert facts["apart_weighted_ms"] is None  # shares of their own need twice the minimum
    assert [model["rung"] for model in facts["models"]] == [0, 0]
    everything = shared(cli, *pair, "--budget", "all")
    assert [model["rung"] for model in everything["models"]] == [len(ladder) - 1] * 2
    kept = sum(model["kept_bytes"] for model in everything["models"])
    assert everything["bytes"] == kept + max(model["working_bytes"] for model in everything["models"])
    assert everything["weighted_ms"] < facts["weighted_ms"]


def test_what_matters_more_gets_more(cli, pair, ladder):
    budget = shared(cli, *pair, "--budget", "75%")["budget_bytes"]
    for favoured, options in ((0, ["--rate", "a=100"]), (1, ["--urgency", "b=50", "--rate", "b=2"])):
        models = shared(cli, *pair, "--budget", budget, *options)["models"]
        assert models[favoured]["urgency"] * models[favoured]["rate"] == 100
        assert models[favoured]["predicted_ms"] <= models[1 - favoured]["predicted_ms"]
        assert models[favoured]["rung"] > 0


def test_the_table(cli, pair):
    printed = cli("share", *pair, "--budget", "all").stdout
    assert "they take turns in the largest working range" in printed and "apart: each with bytes of its own" in printed
    printed = cli("share", *pair, "--budget", "all", "--sharing", "swapnet").stdout
    assert "each has bytes of its own" in printed and "apart" not in printed


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--budget", "1kB"], 4, "the smallest feasible budget is"),
        (["--budget", "all", "--rate", "c=2"], 2, "'c' is not known: it is one of a, b"),
        (["--budget", "all", "--rate", "a=no"], 2, "'a=no' is not NAME=NUMBER"),
        (["--budget", "all", "--urgency", "a=-1"], 2, "'a=-1' is not NAME=NUMBER"),
        (["--budget", "all", "--urgency", "a"], 2, "'a' is not NAME=NUMBER"),
        ([], 2, "'--budget'"),
    ],
)
def test_what_is_wrong_is_said(cli, pair, options, code, says):
    done = cli("share", *pair, *options)
    assert done.returncode == code and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_names_are_those_of_files(cli, pair, library):
    done = cli("share", pair[0], pair[0], "--budget", "all")
    assert done.returncode == 2 and "two libraries are called a" in done.stderr
    done = cli("share", pair[0], pair[0].with_name("none.so"), "--budget", "all")
    assert done.returncode == 4 and "none.so" in done.stderr

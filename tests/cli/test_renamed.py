"""Old names of public options work, with a warning; both names at once are refused."""

from __future__ import annotations

import inspect
import json
import subprocess
import warnings

import pytest

import flexcomp
from flexcomp import remote, runtime_ext
from flexcomp.cli.command import with_new_names
from flexcomp.renamed import OPTIONS, Renamed, milliseconds, renamed
from flexcomp.runtime import ShareRung, Shares, runner
from tests.report.programs import two_layers

KEYWORDS = [
    (flexcomp.build, "device", "profile"),
    (flexcomp.load, "help", "work_stealing"),
    (flexcomp.tune, "timeout_s", "timeout_ms"),
    (remote.connect, "wait_s", "wait_ms"),
    (flexcomp.Session.watch, "interval_s", "interval_ms"),
    (flexcomp.Session.watch, "patience_s", "patience_ms"),
    (flexcomp.Pool.watch, "interval_s", "interval_ms"),
    (flexcomp.Pool.watch, "patience_s", "patience_ms"),
    (flexcomp.Pool, "strategy", "sharing"),
    (flexcomp.runtime.shares, "strategy", "sharing"),
    (flexcomp.runtime.least_bytes, "strategy", "sharing"),
]


@pytest.mark.parametrize(("function", "old", "new"), KEYWORDS)
def test_a_function_takes_the_old_name(function, old, new):
    parameters = inspect.signature(function).parameters
    assert new in parameters and old not in parameters
    required = [None for one in parameters.values() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {name: None for name, one in parameters.items() if one.default is one.empty and one.kind is one.KEYWORD_ONLY}
    with pytest.raises(flexcomp.InputError, match=f"takes {new} or {old}"):
        function(*required, **named, **{old: 1, new: 1})
    with pytest.warns(DeprecationWarning, match=rf"{old}=….* is now called {new}=…") as told, warnings.catch_warnings():
        warnings.filterwarnings("always", category=DeprecationWarning)
        with pytest.raises((flexcomp.FlexcompError, AttributeError, TypeError)):  # the other arguments are none
            function(*required, **named, **{old: "x"})
    assert told[0].filename == __file__, "the warning names the caller's line"


def test_seconds_become_milliseconds():
    @renamed(wait_s=Renamed("wait_ms", milliseconds))
    def waits(wait_ms: float = 0) -> float:
        return wait_ms

    with pytest.warns(DeprecationWarning, match="now called"):
        assert waits(wait_s=1.5) == 1500
    assert waits(2) == 2


def test_attributes_answer_to_old_names():
    refused = flexcomp.RefusedError("too many", "queue", 1500.0)
    rung = ShareRung(0, 0, 250.0)
    found = Shares((0,), 0, 0, 250.0, 1)
    for owner, old, new, seconds in (
        (refused, "retry_after_s", "retry_after_ms", 1.5),
        (rung, "predicted_s", "predicted_ms", 0.25),
        (found, "cost", "weighted_ms", 0.25),
        (two_layers().rungs[0], "predicted_s", "predicted_ms", 0.001),
    ):
        with pytest.warns(DeprecationWarning, match=rf"\.{old} is now called {new}") as told:
            assert getattr(owner, old) == seconds
        assert told[0].filename == __file__
        assert getattr(owner, new) == pytest.approx(1e3 * seconds)
        with pytest.raises(AttributeError):
            setattr(owner, old, 1.0)


OLD = [
    ("share", ["--strategy=swapnet"], ["--sharing", "swapnet"]),
    ("serve", ["--strategy", "exact"], ["--sharing", "exact"]),
    ("plan", ["n.so", "-o", "p.png"], ["n.so", "--picture", "p.png"]),
    ("plan", ["n.so", "--output=p.png"], ["n.so", "--picture", "p.png"]),
    ("build", ["m.onnx", "--device", "p.json"], ["m.onnx", "--profile", "p.json"]),
    ("build", ["--device=p=q.json"], ["--profile", "p=q.json"]),
    ("build", ["--", "--device"], ["--", "--device"]),
    ("tune", ["--timeout", "1.5"], ["--timeout-ms", "1500"]),
    ("serve", ["--deadline", "a=100"], ["--deadline-ms", "a=100"]),
    ("serve", ["--body-timeout=0.5", "--grace", "20"], ["--body-timeout-ms", "500", "--grace-ms", "20000"]),
    ("bench", ["--kernels", "m.onnx", "--json"], ["m.onnx", "--json"]),
    ("remote run", ["--rpc-wait", "x"], ["--rpc-wait-ms", "x"]),
    ("remote measure", ["--rpc-wait", "3"], ["--rpc-wait-ms", "3000"]),
    ("remote profile", ["--rpc-wait", "3"], ["--rpc-wait-ms", "3000"]),
]


@pytest.mark.parametrize(("command", "given", "expected"), OLD)
def test_a_command_takes_the_old_option(command, given, expected, capsys):
    assert with_new_names(command, given) == expected
    told = capsys.readouterr().err.splitlines()
    assert len(told) == sum(word.partition("=")[0] in OPTIONS[command] for word in given) * ("--" not in given)
    assert all("is now called" in line for line in told)


def test_every_old_option_is_tried():
    tried = {(command, word.partition("=")[0]) for command, given, _ in OLD for word in given}
    assert tried >= {(command, old) for command, table in OPTIONS.items() for old in table}


def test_commands_read_the_table(cli, tmp_path):
    done = cli("build", tmp_path / "absent.onnx", "-o", tmp_path / "x.so", "--device", "p.json")
    warning, error = done.stderr.splitlines()
    assert warning.startswith("warning: --device is now called --profile") and "absent.onnx" in error


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (["--buffered"], "--no-direct", None),
        (["--no-help"], "--no-work-stealing", None),
        (["--deadline=a=5"], "--deadline-ms", "need --pool"),
    ],
)
def test_the_runner_takes_old_options(library, old, new, reason):
    command = [str(runtime_ext.runner()), str(library), *old]
    done = subprocess.run(command, capture_output=True, text=True, env=runner._environment(), check=False)
    assert f"warning: {old[0].partition('=')[0]} is now called {new};" in done.stderr
    if reason is None:
        assert done.returncode == 0 and json.loads(done.stdout)["bytes_read"]
    else:
        assert done.returncode == 2 and reason in done.stderr

"""What Python users meet besides answers: names, representations, progress, errors of ours for wrong types."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import pty
import pydoc
import re
import sys
import tempfile
import typing
from pathlib import Path

import numpy as np
import onnx
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.report import showing

from ..cli import calls


def network() -> onnx.ModelProto:
    g = Graph("tiny", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 3, 16, 16)), 16, 3))
    x = g.op("Flatten", x, axis=1, channels=16 * 16 * 16)
    return g.model(g.dense(x, 32), (1, 32))


@pytest.fixture(scope="module")
def artifact():
    return flexcomp.build(network(), kernels="smallest")


@pytest.fixture
def library(artifact, tmp_path):
    artifact.export_library(tmp_path / "tiny.so")
    return tmp_path / "tiny.so"


def test_only_public_names_are_listed():
    """Also once rooms were imported, which are then attributes of the package."""
    assert {"build", "load", "tune", "Pool", "Session", "BudgetError", "remote"} <= set(dir(flexcomp))
    assert "compiler" not in dir(flexcomp) and all(hasattr(flexcomp, name) for name in dir(flexcomp))
    text = pydoc.plain(pydoc.render_doc(flexcomp))
    assert len(text.splitlines()) <= 60 and "benchmarks" not in text
    for name in set(dir(flexcomp)) - {"__version__"}:
        assert re.search(rf"\b{name}\b", text.partition("PACKAGE CONTENTS")[0]), name


def test_types_are_for_others_too():
    assert (Path(flexcomp.__file__).parent / "py.typed").exists()
    for function in (flexcomp.build, flexcomp.load, flexcomp.tune, flexcomp.Artifact.session, flexcomp.Session.run):
        untyped = {
            name
            for name, one in inspect.signature(function).parameters.items()
            if one.annotation is inspect.Parameter.empty and name != "self"
        }
        assert not untyped and inspect.signature(function).return_annotation is not inspect.Signature.empty
    assert typing.get_type_hints(flexcomp.build)["return"] is flexcomp.Artifact


def test_artifacts_are_shown_in_a_line(artifact):
    text, predicted = repr(artifact), r"[\d.]+ KiB \([\d.]+ ms"
    assert re.fullmatch(rf"<Artifact tiny: \d+ layers, \d+ plans from {predicted} predicted\) to {predicted}\)>", text)
    assert str(artifact) == text
    assert artifact._repr_html_().count("<tr>") == 1 + len(artifact.program.rungs)


def test_sessions_are_shown_in_a_line(library):
    with flexcomp.load(library, "min", threads=1) as session:
        text = repr(session)
        assert re.fullmatch(
            r"<Session tiny: x: float32\[1, 3, 16, 16\] -> \w+: float32\[1, 32\]; [\d.]+ KiB of [\d.]+ KiB, 1 thread>", text
        )
        html = session._repr_html_()
        assert html.count("bold") == 1 and html.index("bold") < html.index("</tr>", html.index("<tbody>"))
    assert repr(session) == "<Session tiny, closed>"
    assert "bold" not in session._repr_html_() and "closed" in session._repr_html_()


def test_names_are_escaped_in_html(artifact):
    from dataclasses import replace

    odd = replace(artifact, program=replace(artifact.program, model="<b>&"))
    assert "&lt;b&gt;&amp;" in odd._repr_html_() and "<b>" not in odd._repr_html_()


def test_a_session_without_a_library(artifact, library, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype="f4")
    with flexcomp.load(library) as session:
        (expected,) = session.run(x).values()
    with artifact.session("min", 1, verify=True) as session:
        assert list((tmp_path / "temporary").iterdir()) == []
        assert session.budget == artifact.program.rungs[0].budget
        np.testing.assert_allclose(session(x), expected, rtol=1e-4, atol=1e-5)
        session.set_budget("all")
        np.testing.assert_allclose(session(x), expected, rtol=1e-4, atol=1e-5)
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("flexcomp.compiler.artifact.linker_for", None)  # the library of all sessions is linked once
    with artifact.session(folder=tmp_path / "disk") as session:
        assert list((tmp_path / "disk").iterdir()) == []
        np.testing.assert_allclose(session(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(flexcomp.BudgetError, match=r"too small.*set by layer"):
        artifact.session("1kB")


@pytest.mark.parametrize("do", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_is_refused(artifact, library, do):
    with pytest.raises(flexcomp.InputError, match=r"artifact cannot be pickled or copied: export_library writes it"):
        do(artifact)
    refused = pytest.raises(flexcomp.InputError, match=r"session cannot be pickled.*flexcomp\.load")
    with flexcomp.load(library) as session, refused:
        do(session)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 5}, "a model is a path"),
        ({"model": b"x.onnx"}, "a model is a path"),
        ({"target": 5}, "cannot read 5 as a target"),
        ({"budget": []}, "a budget is a number or a string, not list"),
        ({"input_shapes": 5}, "input_shapes must be a dict"),
        ({"input_shapes": {"x": 5}}, r"input_shapes\['x'\] must be a shape"),
        ({"input_shapes": {"x": "1,3"}}, r"input_shapes\['x'\] must be a shape"),
        ({"input_shapes": {"x": (1, 3, None)}}, r"an extent of input_shapes\['x'\] must be a whole number, not None"),
        ({"input_shapes": {"x": (1.5, 3)}}, "must be a whole number, not 1.5"),
        ({"threads": "2"}, r"threads must be a whole number, not '2' \(str\)"),
        ({"threads": True}, "threads must be a whole number, not True"),
        ({"strategy": ["best"]}, r"strategy=\['best'\] is not known: it is one of best"),
        ({"kernels": None}, "kernels=None is not known: it is one of auto"),
        ({"profile": 5}, "profile must be a path, not 5"),
        ({"tuning": {}}, "tuning must be a path"),
        ({"progress": "yes"}, "progress must be a function, True or False, not 'yes'"),
    ],
)
def test_wrong_types_for_build(options, message):
    with pytest.raises(flexcomp.FlexcompError, match=message):
        flexcomp.build(**{"model": network(), **options})


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (5, {}, "the library must be a path, not 5"),
        (b"x.so", {}, "the library must be a path"),
        (None, {"budget": {}}, "a budget is a number or a string, not dict"),
        (None, {"threads": 2.0}, "threads must be a whole number, not 2.0"),
        (None, {"weights": 5}, "weights must be a path, not 5"),
        (None, {"verify": "no"}, "verify"),
        (None, {"compute_cpus": object()}, "compute_cpus must be a core"),
    ],
)
def test_wrong_types_for_load(library, path, options, message):
    with pytest.raises(flexcomp.FlexcompError, match=message):
        flexcomp.load(path or library, **options)


def test_wrong_types_for_the_rest(artifact, library):
    with pytest.raises(flexcomp.InputError, match="the library must be a path"):
        artifact.export_library(5)
    with pytest.raises(flexcomp.InputError, match="compiler must be a string"):
        artifact.export_library(library, compiler=5)
    with pytest.raises(flexcomp.InputError, match="folder must be a path"):
        artifact.session(folder=5)
    with pytest.raises(flexcomp.InputError, match="trials must be a whole number"):
        flexcomp.tune(network(), database="x", trials="many")
    with pytest.raises(flexcomp.InputError, match="database must be a path"):
        flexcomp.tune(network(), database=5)
    with pytest.raises(flexcomp.InputError, match="the address of an RPC server must be a string"):
        flexcomp.remote.connect(5)
    with flexcomp.load(library) as session:
        for wrong in (5, "x", {"x": None}, {"x": [[1, 2], [3]]}, {"x": {1: 2}}, {5: 6}, None):
            with pytest.raises(flexcomp.InputError, match=r"x|inputs"):
                session.run(wrong)
        with pytest.raises(flexcomp.BudgetError):
            session.set_budget([])
        for options in ({"interval_ms": "x"}, {"interval_ms": -1}, {"patience_ms": float("inf")}):
            with pytest.raises(flexcomp.InputError, match="must be a number of milliseconds"):
                session.watch("pressure", **options)


BUILD = """
import sys
import flexcomp, onnx
flexcomp.build(onnx.load(sys.argv[1]), kernels="smallest", progress=eval(sys.argv[2]))
"""


@pytest.mark.parametrize(("progress", "terminal", "seen"), [
    (None, True, True), (None, False, False), (False, True, False), (True, False, True), (True, True, True),
])  # fmt: skip
def test_progress_is_shown_in_terminals(tmp_path, progress, terminal, seen):
    onnx.save(network(), tmp_path / "net.onnx")
    ours, theirs = pty.openpty() if terminal else os.pipe()[::1]
    with open(os.devnull, "w") as nothing:
        process = calls.start("-c", BUILD, tmp_path / "net.onnx", str(progress), stdout=nothing, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while data := os.read(ours, 65536):
            text += data
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    assert process.wait() == 0
    assert (b"tiny: plan" in text) == seen, text
    assert seen or not text


def test_progress_goes_to_the_function_that_was_given():
    phases = []
    flexcomp.build(network(), kernels="smallest", progress=lambda phase, done, total: phases.append(phase))
    assert {"import", "passes", "plan", "compile"} <= set(phases)


def test_progress_is_shown_in_notebooks(monkeypatch):
    """ipykernel's stderr is no terminal; rich knows a notebook by the class of its shell."""
    assert not showing._somebody_looks_on()
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert showing._somebody_looks_on()

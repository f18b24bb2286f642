"""Tuning a small network: trials run in the runtime, interrupted work continues, `build` uses what was found."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

import flexcomp
from flexcomp.device.target import resolve_target
from flexcomp.errors import InputError
from flexcomp.profiling.kernel_records import Database
from flexcomp.program import choices
from flexcomp.program.digest import WeightsDigest
from flexcomp.schedules.registry import named
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.tuning.trial import Trial, one_layer_program
from flexcomp.tuning.workers import Workers, outcome
from tests.operators.recurrent import Case
from tests.shaped import Nodes

from .networks import network

_PATIENT_MS = 300000  # on a machine that other tests share


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuning") / "tuning.jsonl"
    news = []
    report = flexcomp.tune(network(), database=path, trials=10, threads=1, timeout_ms=_PATIENT_MS, progress=news.append)
    return path, report, news


def test_trials_are_recorded_and_reported(tuned):
    path, report, news = tuned
    assert (report.trials, report.failed) == (10, 0)
    assert [(n.done, n.total, n.earlier) for n in news if n.stage == "trying"] == [(i, 10, 0) for i in range(1, 11)]
    assert len(report.layers) == 3
    for layer in report.layers:
        assert layer.default_seconds is not None and 0 < layer.best_seconds <= layer.default_seconds
    assert report.best_seconds <= report.default_seconds
    records = Database.read(path).records
    assert {record.target for record in records} == {str(resolve_target("native"))}
    assert all(1e-7 < record.seconds < 0.1 and record.threads == 1 for record in records)


def test_layers_of_all_shapes_are_tuned(tmp_path):
    g = Nodes(seed=1)
    g.named("y", "MatMul", g.op("Tanh", "x"), g.weight(16, 32))
    model = g.model([("x", 1, ["n", 16])], [("y", 1, ["n", 32])])
    shapes = {"input_shapes": {"x": ("n", 16)}, "shapes": {"n": [1, 24]}}
    report = flexcomp.tune(
        model, database=tmp_path / "tuning.jsonl", trials=2, threads=1, timeout_ms=_PATIENT_MS, **shapes
    )
    assert report.trials == 2 and len(report.layers) == 2  # a row by itself, and many
    with pytest.raises(InputError, match='has an extent "n": say what that may be'):
        flexcomp.tune(model, database=tmp_path / "other.jsonl", input_shapes=shapes["input_shapes"])


def test_a_second_run_continues(tuned, tmp_path):
    path, _, _ = tuned
    copy = tmp_path / "tuning.jsonl"
    copy.write_bytes(path.read_bytes())
    before = {(r.layer, r.kernel) for r in Database.read(path).records}
    news = []
    again = flexcomp.tune(network(), database=copy, trials=3, threads=1, timeout_ms=_PATIENT_MS, progress=news.append)
    assert again.trials == 3
    assert [n.earlier for n in news if n.stage == "trying"] == [len(before)] * 3
    assert len({(r.layer, r.kernel) for r in Database.read(copy).records}) == len(before) + 3


def test_a_winner_of_an_earlier_run_is_measured_again_beside_the_default(tuned, tmp_path):
    """Times of two runs are of different circumstances: here a default that was disturbed."""
    path, _, _ = tuned
    disturbed = Database.open(tmp_path / "tuning.jsonl")
    layer = next(r.layer for r in Database.read(path).records if "kernel=(3, 3)" in r.layer)
    (default,) = [known.default for known in tuned[1].layers if known.description.startswith("3×3")]
    for record in Database.read(path).records:
        slower = 1.0 if record.layer == layer and record.kernel == default else 0.0
        disturbed.append(replace(record, seconds=record.seconds + slower))
    news = []
    flexcomp.tune(network(), database=disturbed.path, trials=1, threads=1, timeout_ms=_PATIENT_MS, progress=news.append)
    again = [n for n in news if n.stage == "comparing" and n.layer.startswith("3×3")]
    assert {default} < {n.kernel for n in again} and news[-1].done == news[-1].total
    assert again[-1].default_seconds < 0.1


def test_a_build_takes_the_fastest_measured_kernel_and_its_time(tuned, tmp_path):
    path, _, _ = tuned
    database = Database.open(tmp_path / "edited.jsonl")
    first = next(r for r in Database.read(path).records if "kernel=(3, 3)" in r.layer)
    unit = resolve_target("native").vector_unit
    fastest = f"direct 3×{2 * unit.width}"
    spec = ConvSpec(1, 24, 24, 16, 32, (3, 3), padding=(1, 1, 1, 1), epilogue=("relu", ("acc",)))
    assert repr(spec) == first.layer
    assert named(spec, unit, fastest) is not None
    database.extend(Database.read(path).records)
    database.append(type(first)(**{**first.__dict__, "kernel": fastest, "seconds": 1e-9}))
    notes = []
    artifact = flexcomp.build(
        network(), threads=1, kernels="fastest", tuning=database.path, progress=lambda phase, *_: notes.append(phase)
    )
    (layer,) = [layer for layer in artifact.program.layers if layer.description.startswith("3×3")]
    assert layer.implementation == fastest
    program = artifact.program  # which says why it was chosen, although it is not on offer without tuning
    assert choices.reasons(program, choices.read(program))[program.layers.index(layer)][-1] == "fastest"
    assert any("3 of 3 kinds of layers measured" in note for note in notes)
    plain = flexcomp.build(network(), threads=1, kernels="fastest")
    assert artifact.program.rungs[-1].seconds != plain.program.rungs[-1].seconds

    outputs = []
    x = np.random.default_rng(0).standard_normal((1, 16, 24, 24), dtype=np.float32)
    for name, one in (("tuned", artifact), ("plain", plain)):
        one.export_library(tmp_path / f"{name}.so")
        with flexcomp.load(tmp_path / f"{name}.so", threads=1) as session:
            outputs.append(session(x))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5 * np.abs(outputs[1]).max())


def test_smallest_kernels_and_other_targets_stay_as_they_are(tuned):
    path, _, _ = tuned
    notes = []
    note = lambda phase, *_: notes.append(phase)  # noqa: E731
    kernels = [
        [layer.implementation for layer in flexcomp.build(network(), **options).program.layers]
        for options in (
            dict(kernels="smallest", threads=1),
            dict(kernels="smallest", threads=1, tuning=path),
            dict(kernels="fastest", threads=2),
            dict(kernels="fastest", threads=2, tuning=path, progress=note),
        )
    ]
    assert kernels[0] == kernels[1]
    assert kernels[2] == kernels[3]
    assert any("records are for another target" in note for note in notes)


def test_kernels_on_narrow_weights_are_measured_for_themselves(tmp_path):
    """A record is of one type of weights, and builds with that type use it."""
    path, patient = tmp_path / "tuning.jsonl", dict(threads=1, timeout_ms=_PATIENT_MS)
    wish = {"*": "int8", "gemm5": "float16"}
    report = flexcomp.tune(network(), database=path, trials=4, weights=wish, **patient)
    assert report.failed == 0
    assert [layer.description.rpartition(", ")[2] for layer in report.layers] == ["int8", "int8", "float16"]
    assert {record.layer.rpartition(" ")[2] for record in Database.read(path).records} == {"int8", "float16"}
    measured = {}
    for weights in (wish, "float32", "bfloat16"):
        notes = []
        options = dict(kernels="fastest", tuning=path, progress=lambda phase, *_, notes=notes: notes.append(phase))
        flexcomp.build(network(), threads=1, weights=weights, **options)
        measured[str(weights)] = [note for note in notes if note.startswith("tuning")]
    assert "3 of 3 kinds of layers measured" in measured.pop(str(wish))[0]
    assert all("0 of 3 kinds" in note for (note,) in measured.values()), measured


def test_weights_that_lose_nothing_are_tuned_as_they_are_built(tmp_path):
    """A build keeps them narrow unasked."""
    coarse = network()
    for tensor in coarse.graph.initializer:
        numbers = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    path = tmp_path / "tuning.jsonl"
    flexcomp.tune(coarse, database=path, trials=1, threads=1, timeout_ms=_PATIENT_MS)
    assert all(record.layer.endswith(" float16") for record in Database.read(path).records)


def test_wrong_use_is_explained(tmp_path):
    path = tmp_path / "tuning.jsonl"
    with pytest.raises(flexcomp.InputError, match="trials must be at least 1"):
        flexcomp.tune(network(), database=path, trials=0)
    with pytest.raises(flexcomp.InputError, match="go together"):
        flexcomp.tune(network(), database=path, tracker="localhost:9190")
    with pytest.raises(flexcomp.InputError, match="weights cannot be kept as 'int2'"):
        flexcomp.tune(network(), database=path, weights="int2")
    with pytest.raises(flexcomp.InputError, match='are for weights="auto"'):
        flexcomp.tune(network(), database=path, weights="int8", max_error=0.1)
    with pytest.raises(flexcomp.TuningError, match=r"broken\.jsonl, line 1 is no record"):
        (tmp_path / "broken.jsonl").write_text("no record\n")
        flexcomp.build(network(), tuning=tmp_path / "broken.jsonl")


def _crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang():
    time.sleep(60)


def _fail():
    raise ValueError("first line\nthe reason")


def test_a_crash_or_a_hang_costs_one_trial():
    workers = Workers(1, 2.0)
    try:
        for function, reason in ((_crash, "crashed"), (_hang, "no answer within 2 s"), (_fail, "the reason")):
            result, error = outcome(workers.submit(function), workers.timeout_s)
            assert result is None and reason in error and "\n" not in error
            assert outcome(workers.submit(os.getpid), workers.timeout_s)[1] is None
    finally:
        workers.close()


def test_a_trial_reads_other_weights_in_every_call():
    spec = ConvSpec(1, 14, 14, 256, 256)
    unit = resolve_target("native").vector_unit
    for name in (f"direct 6×{2 * unit.width}", f"direct 3×{2 * unit.width}"):
        trial = Trial(spec, name, "llvm", 1, WeightsDigest(4096, 0, 1 << 20, ()))
        (rung,) = one_layer_program(trial, named(spec, unit, name), ()).rungs
        places = {step.weights_at for step in rung.steps}
        assert len(places) == len(rung.steps) > 16
        assert set(rung.tapes.first.need) == {len(rung.tapes.operations)}
        assert all(read.to + read.nbytes <= rung.arena for read in rung.tapes.operations)


def test_recurrent_layers_are_tuned_and_built_as_tuned(tmp_path):
    """One with two phases among them; what is slow by prediction is taken where it was measured to be fast."""
    given = ("B", "sequence_lens", "initial_h", "initial_c")
    cells = [
        Case("LSTM", steps=4, batch=2, hidden=40, optional=given, outputs=("Y", "Y_c")),
        Case("GRU", steps=3, hidden=24),
    ]
    for case in cells:
        path = tmp_path / f"{case.kind}.jsonl"
        report = flexcomp.tune(case.model(), database=path, trials=6, threads=1, timeout_ms=_PATIENT_MS)
        layer = next(layer for layer in report.layers if layer.description.startswith(case.kind))
        assert report.failed == 0 and layer.trials > 1 and layer.default.startswith("recurrent ")
        database = Database.read(path)
        records = [record for record in database.records if record.kernel.startswith("recurrent ")]
        slowest = max(records, key=lambda record: (record.kernel != layer.default, record.kernel))
        database.extend([replace(slowest, seconds=1e-9)])
        artifact = flexcomp.build(case.model(), tuning=path, threads=1)
        (built,) = [one for one in artifact.program.layers if one.op == case.kind.lower()]
        assert slowest.kernel != layer.default and built.implementation == slowest.kernel
        with artifact.session() as session:
            found = list(session.run(case.given()).values())
        with flexcomp.build(case.model(), threads=1).session() as session:
            for got, want in zip(found, session.run(case.given()).values(), strict=True):
                np.testing.assert_allclose(got, want, atol=1e-6)

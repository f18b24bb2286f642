"""What `flexcomp tune` shows while it works."""

from flexcomp.cli.tune import _Display
from flexcomp.tuning.report import TrialDone

LAYER = "1×1 1024→2048 @ 14×14 stride 2 +add+relu"


def news(stage="trying", done=1, earlier=0, **changes):
    facts = dict(seconds=2e-3, error=None, default_seconds=2e-3, best_seconds=1e-3) | changes
    return TrialDone(stage, done, 4, earlier, LAYER, "winograd F(4) 2×13 tiles by 4 13×32", **facts)


def shown(capsys, *events):
    with _Display("model.onnx", 4) as display:
        for event in events:
            display(event)
    return capsys.readouterr().err.splitlines()


def test_a_line_for_every_trial_however_long(capsys):
    first, second, third = shown(capsys, news(), news(done=2, seconds=None, error="no answer"), news("comparing"))
    assert first.startswith(f"model.onnx 1/4 {LAYER}: winograd") and first.endswith("2.000 ms (best 1.000 ms, untuned 2.000 ms)")
    assert second.endswith("failed: no answer")
    assert third.startswith("model.onnx comparing again 1/4 ")


def test_who_continues_is_told_once(capsys):
    first, *others = shown(capsys, news(earlier=7), news(done=2, earlier=7))
    assert first == "model.onnx: 7 kernels are known from earlier runs"
    assert len(others) == 2

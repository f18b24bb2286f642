"""The storage of a folder is measured once, remembered coarsely, and measured again where that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexcomp.device import load_profile, resolve_target
from flexcomp.errors import InputError
from flexcomp.profiling import probe


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "storage"


def test_figures_are_rounded_to_steps() -> None:
    assert {probe.rounded(value) for value in (1.45e9, 1.5e9, 1.55e9)} == {probe.rounded(1.5e9)}
    assert all(abs(probe.rounded(value) / value - 1) < 0.08 for value in (1e-5, 0.3, 7e6, 3e9))


def test_what_was_measured_is_remembered(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = resolve_target("native")
    monkeypatch.setattr(probe, "measure", lambda folder: (1.5e9, 80e-6))
    first, note = probe.probed_profile(tmp_path, target)
    (kept,) = cache.iterdir()
    assert "measured" in note and str(kept) in note and load_profile(kept) == first
    assert (first.storage_bytes_per_s, first.load_latency_s) == (probe.rounded(1.5e9), probe.rounded(80e-6))
    monkeypatch.setattr(probe, "measure", lambda folder: (2e8, 1e-3))
    assert probe.probed_profile(tmp_path, target) == (first, note.replace("(measured", "(remembered"))
    kept.write_text("{}")
    assert probe.probed_profile(tmp_path, target)[0].storage_bytes_per_s == probe.rounded(2e8)


def test_few_storages_are_remembered(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure", lambda folder: (1.5e9, 80e-6))
    monkeypatch.setattr(probe, "MOST_FILES", 2)
    for number in range(4):
        monkeypatch.setattr(probe.platform, "node", lambda number=number: f"machine{number}")
        probe.probed_profile(tmp_path, resolve_target("native"))
    assert len(list(cache.iterdir())) == 2


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    bandwidth, latency = probe.measure(tmp_path)
    assert bandwidth > 1e5 and 0 < latency < 10
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="--no-probe"):
        probe.measure(tmp_path / "none")

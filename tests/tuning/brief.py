"""Tuning that compares kernels once and times each a few times: what tests ask for does not depend on how well that is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


@contextmanager
def brief_tuning() -> Iterator[None]:
    """Of this process, which times kernels on devices; its workers, which import the compiler, serve one call after the other."""
    from flexcomp.tuning import clock, local, tuner
    from flexcomp.tuning.workers import Workers

    kept: dict[tuple[int, float], Workers] = {}

    def workers(count: int, timeout_s: float) -> SimpleNamespace:
        if (count, timeout_s) not in kept:
            kept[count, timeout_s] = Workers(count, timeout_s)
        return SimpleNamespace(submit=kept[count, timeout_s].submit, timeout_s=timeout_s, close=lambda: None)

    with pytest.MonkeyPatch.context() as patch:
        for module in (local, tuner):
            patch.setattr(module, "Workers", workers)
        patch.setattr(tuner, "_ROUNDS", 1)
        patch.setattr(tuner, "_DECIDING_ROUNDS", 1)
        patch.setattr(clock, "_FEWEST_RUNS", 2)
        patch.setattr(clock, "_ENOUGH_S", 0.0)
        try:
            yield
        finally:
            for pool in kept.values():
                pool.close()

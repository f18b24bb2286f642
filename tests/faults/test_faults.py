"""A share of what `make faults` does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults import sweep
from tests.runtime import tiny


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    network = tiny.export(folder / "tiny.so", "faults_")
    return sweep.Harness(network, np.random.default_rng(1).standard_normal(tiny.N).astype("f4"), folder)


@pytest.mark.parametrize("kind", sweep.KINDS)
def test_a_call_that_fails_is_survived_or_told(harness, kind):
    """The answer is right, or there is one clear error, and then the answer is right."""
    if kind not in sweep.kinds():
        pytest.skip(f"there is no {sweep.MEMORY} to write to, or there is one core")
    faults = list(sweep.sweep(harness, kind, sample=100, seed=len(kind)))
    assert not [fault for fault in faults if fault.verdict not in (*sweep.GOOD, "unfired")]
    assert {fault.verdict for fault in faults} >= set(sweep.GOOD)

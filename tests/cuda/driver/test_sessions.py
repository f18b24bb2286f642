"""Sessions on a GPU: the tiny network by the runtime's own session and loader, on streams that are threads."""

import numpy as np
import pytest

import flexcomp
from tests.runtime.tiny import close_to


def test_every_rung_gives_the_right_answer(fake, tiny, x):
    for rung in tiny.program.rungs:
        fake.set(compute_delay_us=300, copy_delay_us=300)
        with flexcomp.load(tiny.library, budget=rung.budget) as session:
            for _ in range(3):
                close_to(session(x), tiny.reference(x))
            assert session.stats()["staging_bytes"] == 4 << 20

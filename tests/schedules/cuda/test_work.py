"""What layers are predicted to take: tiles that do not fill all multiprocessors take as long as ones that do."""

import pytest

from flexcomp.device import resolve_target
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec


@pytest.mark.parametrize("target", ["jetson-orin", "h200"])
def test_work_counts_multiprocessors_that_wait(target):
    unit = resolve_target(target).machine
    small, large = ConvSpec(1, 7, 7, 512, 512), ConvSpec(1, 112, 112, 512, 512)
    ratios = [candidates(spec, unit)[0].work / spec.flops for spec in (small, large)]
    assert ratios[0] > 1.4 * ratios[1] and 1 <= ratios[1] < 1.3
    product = MatmulSpec(1, 2048, 2048, 2048)
    assert 1 <= candidates(product, unit)[0].work / product.flops < 1.4

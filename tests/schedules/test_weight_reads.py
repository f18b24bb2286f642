"""How often kernels read weights that are larger than the second-level cache: once, but for the exceptions that are listed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexcomp.schedules import conv
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .weight_reads import times_read

UNIT = VectorUnit(16, 32)
CACHE = 1 << 20
SAME = (1, 1, 1, 1)

# Layers of ResNet-50, VGG-19, a text encoder of 128 tokens and a ViT; how often the direct kernel reads its weights, and the
# fastest, unless a walk through it takes long. Direct kernels read them once for each 512 KiB of input; those of Strassen and
# Winograd once for each group of pixel tiles that scratch has room for.
LAYERS = {
    ConvSpec(1, 14, 14, 256, 256, (3, 3), padding=SAME): (1, 1),
    ConvSpec(1, 28, 28, 512, 1024, (1, 1), (2, 2)): (1, None),
    ConvSpec(1, 14, 14, 1024, 2048, (1, 1), (2, 2)): (1, None),
    ConvSpec(1, 14, 14, 1024, 512): (2, 4),
    ConvSpec(1, 14, 14, 512, 512, (3, 3), (2, 2), SAME): (1, 1),
    ConvSpec(1, 7, 7, 512, 2048): (1, 1),
    ConvSpec(1, 7, 7, 2048, 512): (1, 1),
    ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME): (1, 1),
    ConvSpec(1, 1, 1, 2048, 1000): (1, 1),
    ConvSpec(1, 14, 14, 512, 512, (3, 3), padding=SAME): (1, 1),
    ConvSpec(1, 1, 1, 4096, 4096): (1, 1),
    ConvSpec(1, 1, 128, 768, 768): (1, 3),
    ConvSpec(1, 1, 128, 768, 3072): (1, None),
    ConvSpec(1, 1, 128, 3072, 768): (3, None),
    ConvSpec(1, 1, 197, 768, 768): (2, None),
}


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_weights_are_read_as_often_as_listed(spec):
    offered = candidates(spec, UNIT)
    for candidate, times in zip((offered[0], min(offered, key=lambda one: one.work)), LAYERS[spec], strict=True):
        if times is not None:
            found = times_read(candidate.build(), "panel", candidate.panel.blocks, CACHE)
            assert times - 0.01 <= found <= times + 0.1, f"{candidate} reads its weights {found:.2f} times"


def test_the_count_knows_a_kernel_that_reads_them_for_every_part(monkeypatch):
    """And what small weights have in common with a cache."""
    spec = ConvSpec(1, 1, 128, 768, 768)
    monkeypatch.setattr(conv, "_BAND_NBYTES", 64 * 1024)
    kernel, blocks = candidates(spec, UNIT)[0].build(), candidates(spec, UNIT)[0].panel.blocks
    assert times_read(kernel, "panel", blocks, CACHE) == pytest.approx(3, abs=0.1)
    small = candidates(replace(spec, out_channels=192), UNIT)[0]
    assert times_read(small.build(), "panel", small.panel.blocks, CACHE) == pytest.approx(1, abs=0.1)

"""How often kernels read weights that are larger than the second-level cache: as often as they say, the smallest once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexcomp.passes.choose_kernels import PREFERENCES
from flexcomp.schedules import conv, direct
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.memory import USUAL, Memory
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .weight_reads import times_read

UNIT = VectorUnit(16, 32)
CACHE = 1 << 20
SAME = (1, 1, 1, 1)

# Layers of ResNet-50, VGG-19, a text encoder of 128 tokens and a ViT.
LAYERS = (
    ConvSpec(1, 14, 14, 256, 256, (3, 3), padding=SAME),
    ConvSpec(1, 28, 28, 512, 1024, (1, 1), (2, 2)),
    ConvSpec(1, 14, 14, 1024, 512),
    ConvSpec(1, 14, 14, 512, 512, (3, 3), (2, 2), SAME),
    ConvSpec(1, 7, 7, 2048, 512),
    ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME),
    ConvSpec(1, 1, 1, 2048, 1000),
    ConvSpec(1, 1, 1, 4096, 4096),
    ConvSpec(1, 1, 128, 768, 768),
    ConvSpec(1, 1, 128, 3072, 768),
    ConvSpec(1, 1, 197, 768, 768),
)
# Smaller layers, for the walk through kernels of every family and kind; the cache has a quarter of their weights or a block.
SMALL = (ConvSpec(1, 10, 9, 64, 96, (3, 3), padding=SAME), ConvSpec(1, 1, 99, 256, 128), ConvSpec(2, 6, 6, 128, 192))


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_the_smallest_kernel_reads_its_weights_once(spec):
    kernel = PREFERENCES["smallest"](candidates(spec, UNIT))
    found = times_read(kernel.build(), "panel", kernel.panel.blocks, CACHE)
    assert kernel.reads == 1 and found == pytest.approx(1, abs=0.1), f"{kernel} reads {found:.2f} times"


def test_reading_the_input_again_costs_what_no_cache_holds():
    """An input that comes from memory for every block is worth reading weights again, which the last level holds."""
    spec = ConvSpec(1, 28, 28, 1024, 512)
    far = Memory(far=1e3, near=0.1, second_nbytes=CACHE, last_nbytes=3 << 20)
    chosen = {memory: PREFERENCES["smallest"](candidates(spec, replace(UNIT, memory=memory))) for memory in (USUAL, far)}
    assert {memory: (str(one), one.reads) for memory, one in chosen.items()} == {
        USUAL: ("direct in one pass 6×64", 1),
        far: ("direct 6×64", 7),
    }


def test_threads_that_share_rows_read_all_weights():
    """Each keeps its rows from layer to layer; where weights are many, threads share these."""
    threads = replace(UNIT, threads=2)
    assert not any("one pass" in str(one) for one in candidates(ConvSpec(1, 56, 56, 256, 256, (3, 3), padding=SAME), threads))
    kernel = PREFERENCES["smallest"](candidates(ConvSpec(1, 1, 128, 3072, 768), threads))
    assert kernel.reads == 1 and times_read(kernel.build(), "panel", kernel.panel.blocks, CACHE) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("spec", SMALL, ids=str)
def test_kernels_of_all_families_read_as_often_as_they_say(spec):
    unit = replace(UNIT, spare_loads=True)
    families, seen = set(), set()
    for offered in candidates(spec, unit):
        families.add(offered.family)
        cache = max(offered.weight_nbytes // 4, offered.panel.block_nbytes + 32768)
        there = candidates(spec, replace(unit, memory=replace(unit.memory, second_nbytes=cache)))
        for kernel in (one for one in there if (one.family, one.tile) == (offered.family, offered.tile)):
            if (str(kernel), cache) in seen:
                continue
            seen.add((str(kernel), cache))
            found = times_read(kernel.build(), "panel", kernel.panel.blocks, cache)
            assert found == pytest.approx(kernel.reads, rel=0.25), f"{kernel} reads {found:.2f} times"
    assert len(families) > 1


@pytest.mark.parametrize("channels", [256, 512, 1024])
def test_a_block_that_several_tiles_read_stays_cached(channels, monkeypatch):
    """Otherwise each of them reads all of it from beyond."""
    spec = ConvSpec(1, 6, 28, channels, 64, (3, 3), padding=SAME)
    kernel = candidates(spec, UNIT)[0]
    assert kernel.panel.block_nbytes <= direct._BLOCK_NBYTES
    assert times_read(kernel.build(), "panel", kernel.panel.blocks, CACHE) == pytest.approx(kernel.reads, abs=0.1)
    if channels == 1024:
        monkeypatch.setattr(direct, "_BLOCK_NBYTES", 1 << 30)
        kernel = candidates(replace(spec, height=7), UNIT)[0]
        assert times_read(kernel.build(), "panel", kernel.panel.blocks, CACHE) > 2 * kernel.reads


def test_the_count_knows_a_kernel_that_reads_them_for_every_part(monkeypatch):
    """And what small weights have in common with a cache."""
    spec = ConvSpec(1, 1, 128, 768, 768)
    monkeypatch.setattr(conv, "_BAND_NBYTES", 64 * 1024)
    of_parts = direct.candidate(spec, candidates(spec, UNIT)[0].tile, UNIT)
    assert times_read(of_parts.build(), "panel", of_parts.panel.blocks, CACHE) == pytest.approx(3, abs=0.1)
    small = candidates(replace(spec, out_channels=192), UNIT)[0]
    assert times_read(small.build(), "panel", small.panel.blocks, CACHE) == pytest.approx(1, abs=0.1)

"""Kernels that write into a part of a larger tensor: the same numbers as elsewhere, and nothing around them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import tvm

from flexcomp.schedules.machines import decoded_rows
from flexcomp.schedules.operators import concat
from flexcomp.schedules.operators.concat import ConcatSpec
from flexcomp.schedules.registry import Candidate, candidates
from flexcomp.schedules.row_bands import Rows
from flexcomp.schedules.tiles.place import Place
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from tests.schedules.kernels import call, library

UNIT = VectorUnit(8, 16)
SAME = (1, 1, 1, 1)
SPECS = (
    ConvSpec(1, 9, 8, 16, 40, (3, 3), padding=SAME, epilogue=("relu", ("acc",))),
    ConvSpec(1, 7, 7, 128, 64, epilogue=("relu", ("acc",))),
    ConvSpec(2, 5, 6, 24, 20, (3, 3), padding=SAME),
    ConvSpec(1, 9, 8, 24, 24, (3, 3), padding=SAME, groups=24),
    ConvSpec(1, 8, 8, 16, 32, (3, 3), stride=(2, 2), padding=SAME, groups=2),
    ConvSpec(1, 1, 1, 64, 48),
)


def among_channels(spec: ConvSpec, before: int = 12, after: int = 7) -> Place:
    *pixels, channels = spec.out_shape
    return Place((*pixels, before + channels + after), before, before + channels + after)


def behind_rows(spec: ConvSpec, before: int = 3) -> Place:
    """All pixels in a row, behind others."""
    *pixels, channels = spec.out_shape
    return Place((before + int(np.prod(pixels)), channels), before * channels, channels)


def families(spec: ConvSpec) -> dict[tuple[str, str], Candidate]:
    """One candidate of every family, and of Winograd's one per kind."""
    chosen: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates(spec, UNIT):
        kind = candidate.variant.split(" ")[0] if candidate.family == "winograd" else ""
        chosen.setdefault((candidate.family, kind), candidate)
    return chosen


def test_every_family_writes_its_part_and_nothing_else():
    """The first candidate of each family in both kinds of places, each other kind of Winograd's in one, once."""
    functions, cases, tried = {}, [], set()
    for spec in SPECS:
        placed_specs = [replace(spec, place=where(spec)) for where in (among_channels, behind_rows)]
        placed = [families(one) for one in placed_specs]
        seen = Counter()
        for kind, plain in families(spec).items():
            assert {str(others[kind]) for others in placed} == {str(plain)}
            if plain.family == "winograd" and kind in tried:
                continue
            tried.add(kind)
            number, at = seen[kind[0]], len(cases)
            seen[kind[0]] += 1
            chosen = (0, 1) if number == 0 else (number % 2,)
            functions[f"plain_{at}"] = plain.build()
            functions |= {f"placed_{at}_{i}": placed[i][kind].build() for i in chosen}
            cases.append((spec, plain, {f"placed_{at}_{i}": placed_specs[i].place for i in chosen}))
    assert {candidate.family for _, candidate, _ in cases} == {
        "direct", "depthwise", "gemv", "im2col_gemm", "strassen", "winograd",
    }  # fmt: skip
    compiled = library(functions)
    rng = np.random.default_rng(0)
    for at, (spec, candidate, places) in enumerate(cases):
        x = rng.standard_normal((spec.batch, spec.height, spec.width, spec.in_channels)).astype("f4")
        panel = rng.standard_normal(candidate.panel.shape).astype("f4")
        expected = run(compiled[f"plain_{at}"], candidate, x, panel, spec.out_shape)
        assert not np.isnan(expected).any()
        pixels = np.arange(expected.size // spec.out_channels)[:, None]
        for name, place in places.items():
            whole = run(compiled[name], candidate, x, panel, place.shape).reshape(-1)
            index = place.start + pixels * place.stride + np.arange(spec.out_channels)
            np.testing.assert_array_equal(whole[index], expected.reshape(-1, spec.out_channels), f"{place} {candidate}")
            assert np.isnan(np.delete(whole, index)).all(), f"{place} {candidate} writes elsewhere"


def run(function, candidate, x, panel, out) -> np.ndarray:
    """The tensor that a kernel writes to, in two slices; NaN where it writes nothing."""
    result = tvm.runtime.tensor(np.full(out, np.nan, "f4"))
    scratch = [tvm.runtime.tensor(np.zeros(shape, "f4")) for shape in candidate.scratch]
    cut = candidate.panel.blocks // 2
    for first, count in ((0, cut), (cut, candidate.panel.blocks - cut)):
        if count:
            given = np.zeros_like(panel)
            given[:count] = panel[first : first + count]
            function(tvm.runtime.tensor(x), tvm.runtime.tensor(given), first, count, result, *scratch)
    return result.numpy()


def test_where_the_parts_of_a_concatenation_lie():
    channels = ConcatSpec(((1, 4, 5, 16), (1, 4, 5, 8)), 3)
    assert channels.place_of(0, 16) == Place((1, 4, 5, 24), 0, 24)
    assert channels.place_of(1, 8) == Place((1, 4, 5, 24), 16, 24)
    rows = ConcatSpec(((1, 1, 24), (1, 20, 24)), 1)
    assert rows.place_of(1, 24) == Place((1, 21, 24), 24, 24)
    assert rows.place_of(1, 48) == Place((1, 21, 24), 24, 48), "two tokens are a pixel"
    assert rows.place_of(1, 25) is None
    several = ConcatSpec(((2, 3, 8), (2, 4, 8)), 1)
    assert several.place_of(1, 8) is None, "the images of a batch lie farther apart than its pixels"


def test_a_concatenation_copies_only_what_is_not_there():
    spec = ConcatSpec(((1, 3, 4, 8), (1, 3, 4, 12), (1, 3, 4, 5)), 3, placed=(0, 2))
    x = np.random.default_rng(1).standard_normal(spec.shapes[1]).astype("f4")
    y = call(library({"join": concat.kernel(spec, 8)})["join"], x, out=spec.out_shape)
    np.testing.assert_array_equal(y[..., 8:20], x)
    assert np.isnan(y[..., :8]).all() and np.isnan(y[..., 20:]).all()
    assert str(spec) == "concat (8)+12+(5) × 12"


def test_bands_of_a_part_are_bands_of_the_whole():
    spec = replace(SPECS[0], place=among_channels(SPECS[0]))
    candidate = candidates(spec, UNIT)[0]
    kernel = candidate.rows
    assert decoded_rows(kernel.encode()) == kernel
    assert kernel.band(Rows(2, 5)).spec.place == Place((1, 3, 8, 59), 12, 59)
    apart = replace(spec, place=behind_rows(spec))
    assert candidates(apart, UNIT)[0].rows is None, "its rows are not those of the whole"

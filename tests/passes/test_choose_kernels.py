"""Which of a layer's candidates the preferences take."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.passes.choose_kernels import PREFERENCES, agreed, hull
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

UNIT = VectorUnit(16, 32)


def conv(side: int, channels: int) -> ConvSpec:
    return ConvSpec(1, side, side, channels, channels, (3, 3), padding=(1, 1, 1, 1))


@pytest.mark.parametrize(("shape", "fastest"), [((14, 512), "F(5)"), ((28, 512), "F(4)"), ((7, 512), "F(4)")])
def test_balanced_saves_most_of_the_work_for_few_weights(shape, fastest):
    offers = candidates(conv(*shape), UNIT)
    small, balanced, fast = (PREFERENCES[name](offers) for name in ("smallest", "balanced", "fastest"))
    assert (small.family, balanced.variant[:4], fast.variant[:4]) == ("direct", "F(2)", fastest)
    part = (balanced.weight_nbytes - small.weight_nbytes) / (fast.weight_nbytes - small.weight_nbytes)
    assert small.work - balanced.work > 2 * part * (small.work - fast.work)


@given(st.floats(1e-3, 1e4), st.sampled_from([(7, 512), (14, 256), (28, 128), (56, 64)]))
def test_at_every_price_of_a_byte_a_corner_of_the_hull_costs_least(price, shape):
    offers = candidates(conv(*shape), UNIT)
    corners = hull(offers)

    def cost(candidate):
        return candidate.work + price * candidate.weight_nbytes

    assert min(map(cost, corners)) <= min(cost(one) for one in offers if one.weight_nbytes >= corners[0].weight_nbytes)
    assert [one.weight_nbytes for one in corners] == sorted({one.weight_nbytes for one in corners})


@pytest.mark.parametrize("preference", PREFERENCES)
def test_every_preference_takes_the_only_candidate(preference):
    only = candidates(conv(14, 256), UNIT)[:1]
    assert PREFERENCES[preference](only) is only[0]


def forms(picks) -> set:
    return {(pick.panel, pick.transform) for pick in picks}


@pytest.mark.parametrize("preference", ["smallest", "balanced", "fastest"])
@pytest.mark.parametrize("channels", [64, 128])
def test_layers_with_the_same_weights_take_them_in_few_forms(preference, channels):
    offers = [candidates(conv(side, channels), UNIT) for side in (40, 20, 10, 5, 3)]
    alone = [PREFERENCES[preference](offered) for offered in offers]
    together = agreed(alone, offers)
    assert len(forms(together)) <= len(forms(alone)) - (preference == "fastest")
    assert sum(pick.work for pick in together) <= 1.03 * sum(pick.work for pick in alone)
    for pick, own, offered in zip(together, alone, offers, strict=True):
        assert pick in offered and pick.scratch_nbytes <= own.scratch_nbytes


def test_layers_that_agree_keep_their_kernels():
    offers = [candidates(conv(28, 128), UNIT)] * 2
    picks = [PREFERENCES["fastest"](offered) for offered in offers]
    assert agreed(picks, offers) == picks


def test_where_inputs_are_padded_the_mean_of_lengths_decides():
    """Two levels of fast products compute many rows together; a layer of other rows is chosen as ever."""
    layer, padded = ConvSpec(1, 1, 64, 384, 1536), replace(UNIT, padded=((64, 17), (512, 129)))
    whole, mean = ({str(one): one for one in candidates(layer, unit)} for unit in (UNIT, padded))
    direct = next(name for name, one in whole.items() if one.family == "direct")
    rows = [-(-length // whole[direct].tile.rows) * whole[direct].tile.rows for length in range(17, 65)]
    assert mean[direct].work == pytest.approx(whole[direct].work * sum(rows) / len(rows) / 64)
    assert PREFERENCES["fastest"](list(whole.values())).together >= 32
    assert PREFERENCES["fastest"](list(mean.values())).together <= 4
    other = ConvSpec(1, 1, 65, 384, 1536)
    assert [one.work for one in candidates(other, UNIT)] == [one.work for one in candidates(other, padded)]

"""Shares of several models under one budget, against all combinations of their rungs."""

from __future__ import annotations

import random
import re
from itertools import product
from math import inf, nan

import pytest

from flexcomp.errors import BudgetError, InputError
from flexcomp.runtime import ShareRung, ladder_of, least_bytes, read_info, shares
from flexcomp.units import Units

PAGE = 4096


def needed(rungs, lanes) -> int:
    working = {lane: max(rung.working_bytes for rung, at in zip(rungs, lanes, strict=True) if at == lane) for lane in lanes}
    return sum(working.values()) + sum(rung.kept_bytes for rung in rungs)


def brute_force(ladders, weights, budget, lanes):
    """The least (cost, bytes) that fits, or None; and the least bytes."""
    best, least = None, inf
    for rungs in product(*ladders):
        nbytes = needed(rungs, lanes)
        least = min(least, nbytes)
        cost = sum(weight * rung.predicted_ms for weight, rung in zip(weights, rungs, strict=True))
        if nbytes <= budget and (best is None or (cost, nbytes) < best):
            best = cost, nbytes
    return best, least


def random_ladder(rng: random.Random, kind: str) -> list[ShareRung]:
    """Whole seconds, so that sums are exact: of any shape, like a plan's, or with as much saved by every byte."""
    count, at = rng.randint(1, 6), rng.randint(1, 4)
    if kind == "any":
        return [ShareRung(rng.randint(0, 9), rng.randint(0, 9), float(rng.randint(0, 9))) for _ in range(count)]
    if kind == "line":
        return [ShareRung(PAGE * at, PAGE * i, float(10 - i)) for i in rng.sample(range(10), count)]
    return [ShareRung(PAGE * rng.randint(at, at + 3), PAGE * 3 * i, float(rng.randint(1, 40) // (i + 1))) for i in range(count)]


def random_case(seed: int):
    rng = random.Random(seed)
    kind = ("any", "plan", "line")[seed % 3]
    ladders = [random_ladder(rng, kind) for _ in range(rng.randint(1, 5))]
    weights = [float(rng.choice((0, 1, 1, 2, 5))) for _ in ladders]
    lanes = [rng.randrange(min(len(ladders), 1 + seed // 3 % 3)) for _ in ladders]
    most = sum(max(rung.nbytes for rung in ladder) for ladder in ladders)
    return ladders, weights, rng.randint(0, most), lanes


def test_equal_to_brute_force_on_random_ladders():
    fitted = 0
    for seed in range(900):
        ladders, weights, budget, lanes = random_case(seed)
        best, least = brute_force(ladders, weights, budget, lanes)
        assert least_bytes(ladders, lanes=lanes) == least, seed
        if best is None:
            with pytest.raises(BudgetError):
                shares(ladders, weights, budget, lanes=lanes)
            continue
        fitted += 1
        found = shares(ladders, weights, budget, lanes=lanes)
        chosen = [ladder[rung] for ladder, rung in zip(ladders, found.rungs, strict=True)]
        assert (found.weighted_ms, found.nbytes) == best, seed
        assert found.nbytes == needed(chosen, lanes) and found.least_bytes == least
        assert found.weighted_ms == sum(weight * rung.predicted_ms for weight, rung in zip(weights, chosen, strict=True))
        assert found == shares(ladders, weights, budget, lanes=lanes)
    assert fitted > 500


def long_ladders(kind: str, seed: int, models: int = 8, rungs: int = 50) -> list[list[ShareRung]]:
    """As of real networks: bytes that are kept save their reading, at the same rate or nearly so, and working ones some more."""
    rng = random.Random(seed)
    ladders = []
    for _ in range(models):
        base, weights, compute = rng.randint(200, 3000), rng.randint(2000, 20000), rng.uniform(0.005, 0.1)
        ladder = []
        for i in range(rungs):
            kept, working, noise = weights * i // (rungs - 1), base, 1.0
            if kind == "noisy":
                working, noise = base + rng.randint(0, base), rng.uniform(0.9, 1.1)
            seconds = compute + (weights - kept) * PAGE / 7e8 * noise + 0.02 * (2 - working / base)
            ladder.append(ShareRung(working * PAGE, kept * PAGE, seconds))
        ladders.append(ladder)
    return ladders


@pytest.mark.parametrize(("kind", "most_work"), [("line", 5_000_000), ("noisy", 300_000)])
@pytest.mark.parametrize("lanes", [1, 2])
def test_eight_ladders_of_fifty_rungs_are_little_work(kind, most_work, lanes):
    """There are 50 ** 8 whole choices. Where every byte saves exactly as much as another, more partial ones are alike."""
    for seed in range(4):
        ladders = long_ladders(kind, seed)
        weights = [float(random.Random(i).choice((1, 2, 5))) for i in range(8)]
        lane_of = [i % lanes for i in range(8)]
        least, most = least_bytes(ladders, lanes=lane_of), sum(ladder[-1].nbytes for ladder in ladders)
        for part in (0.05, 0.3, 0.6, 0.9):
            found = shares(ladders, weights, int(least + part * (most - least)), lanes=lane_of)
            assert found.partial_choices < most_work, (seed, part)


def test_more_memory_is_never_slower():
    for seed in range(6):
        ladders = long_ladders("noisy", seed, 4, 12)
        lanes = [i % (1 + seed % 2) for i in range(4)]
        least, most = least_bytes(ladders, lanes=lanes), sum(ladder[-1].nbytes for ladder in ladders)
        budgets = range(least, most, (most - least) // 40)
        costs = [shares(ladders, [1.0] * 4, budget, lanes=lanes).weighted_ms for budget in budgets]
        assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]


def test_a_budget_too_small_says_which_is_not():
    ladders = [[ShareRung(2 << 20, 1 << 20, 1.0)], [ShareRung(3 << 20, 0, 1.0)]]
    words = "a budget of 3.00 MiB is too small for 2 models: the smallest feasible budget is 4.00 MiB"
    with pytest.raises(BudgetError, match=f"^{re.escape(words)}$"):
        shares(ladders, [1, 1], 3 << 20)
    assert shares(ladders, [1, 1], 4 << 20).nbytes == 4 << 20
    with pytest.raises(BudgetError, match=r"the smallest feasible budget is 6\.30 MB"):
        shares(ladders, [1, 1], (6 << 20) - 1, lanes=[0, 1], units=Units.DECIMAL)
    with pytest.raises(BudgetError, match=r"with a share for each is 6\.00 MiB"):
        shares(ladders, [1, 1], (6 << 20) - 1, sharing="swapnet")


def test_lanes_take_turns_each_for_itself():
    ladder = [ShareRung(10, 1, 2.0), ShareRung(40, 1, 1.0)]
    assert shares([ladder] * 2, [1, 1], 42).rungs == (1, 1)
    assert shares([ladder] * 2, [1, 1], 42, lanes=[0, 1]).rungs == (0, 0)
    assert shares([ladder] * 2, [1, 2], 52, lanes=[0, 1]).rungs == (0, 1)


def test_swapnet_gives_shares_by_its_score():
    """Of 120 bytes 60 go by 100 : 50 bytes, 60 by the scores 1/100 · 3 : 1/50 · 1."""
    first = [ShareRung(5, 55, 3.0), ShareRung(20, 80, 1.0)]
    ladders = [first, [ShareRung(5, 30, 4.0), ShareRung(5, 31, 3.0), ShareRung(50, 0, 1.0)]]
    found = shares(ladders, [3.0, 1.0], 120, sharing="swapnet")  # 40 + 36, and 20 + 24
    assert found.rungs == (0, 1) and found.nbytes == 96 and found.weighted_ms == 12.0
    assert shares(ladders, [3.0, 1.0], 150, sharing="swapnet").rungs == (1, 2)
    assert shares(ladders, [0.0, 0.0], 124, sharing="swapnet").rungs == (0, 2)  # 41 + 31, and 20 + 31
    least = found.least_bytes
    assert shares(ladders, [3.0, 1.0], least, sharing="swapnet").nbytes <= least
    with pytest.raises(BudgetError):
        shares(ladders, [3.0, 1.0], least - 1, sharing="swapnet")


def test_swapnet_is_never_better():
    for seed in range(60):
        ladders, weights, _, _ = random_case(seed)
        least = shares(ladders, weights, 10**9, sharing="swapnet").least_bytes
        theirs = shares(ladders, weights, least, sharing="swapnet")
        assert theirs.nbytes <= least and shares(ladders, weights, least).weighted_ms <= theirs.weighted_ms


ONE = [ShareRung(1, 1, 1.0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], [], 9), "1 to 256 models"),
        (([ONE], [1, 1], 9), "1 ladders, 2 weights and 1 lanes"),
        (([[]], [1], 9), "model 0 has 0 rungs"),
        (([ONE], [-1], 9), "weight of model 0"),
        (([ONE], [nan], 9), "finite"),
        (([ONE], [inf], 9), "finite"),
        (([ONE, [ShareRung(1, 1, 1e10)]], [1, 1e300], 9), "too large"),
        (([[ShareRung(-1, 1, 1.0)]], [1], 9), "must not be negative"),
        (([[ShareRung(1, 2**44, 1.0)]], [1], 9), "rung 0 of model 0 is larger"),
        (([[ShareRung(1, 2**70, 1.0)]], [1], 9), "number of bytes"),
        (([[ShareRung(1, 1, -1.0)]], [1], 9), "takes -1 seconds"),
        (([[ShareRung(1.5, 1, 1.0)]], [1], 9), "number of bytes"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(InputError, match=words):
        shares(*arguments)


def test_wrong_lanes_strategies_and_budgets():
    with pytest.raises(InputError, match="model 0 is in lane 1 of 1"):
        shares([ONE], [1], 9, lanes=[1])
    with pytest.raises(InputError, match='"best" is not known: it is one of exact, swapnet'):
        shares([ONE], [1], 9, sharing="best")
    for budget in (-1, 2**63):
        with pytest.raises(BudgetError, match="less than 2"):
            shares([ONE], [1], budget)


def test_the_ladder_of_a_library(tiny):
    ladder = ladder_of(read_info(tiny.library))
    assert ladder == tuple(ShareRung(r.working, r.arena - r.working, 1e3 * r.seconds) for r in tiny.program.rungs)

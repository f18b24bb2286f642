"""Pairwise designs hold every pair, in few combinations."""

from itertools import combinations, product

from .pairs import pairs


def test_every_pair_occurs():
    factors = [range(8), "abcd", (None, "x", "y"), (False, True)]
    chosen = pairs(*factors)
    assert len(chosen) == len(set(chosen)) <= 40  # 32 are needed for the first two factors, all combinations are 192
    for one, other in combinations(range(len(factors)), 2):
        assert {(row[one], row[other]) for row in chosen} == set(product(factors[one], factors[other]))

import numpy as np
import pytest

from flexcomp.errors import BudgetError
from flexcomp.runtime.budget import Budget, parse_budget, resolve


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (5, 5), ("32000000", 32_000_000), ("64MB", 64 * 10**6), ("64MiB", 64 * 2**20), ("1.5 mib", 3 * 2**19),
        ("2GB", 2 * 10**9), ("7kb", 7000), ("12b", 12), (np.int64(9), 9), (str(2**62 + 1), 2**62 + 1),
    ],
)  # fmt: skip
def test_bytes(text, nbytes):
    assert parse_budget(text) == Budget(nbytes=nbytes)


@pytest.mark.parametrize(("text", "fraction"), [(0.1, 0.1), ("0.25", 0.25), (1.0, 1.0), (".5", 0.5)])
def test_fractions(text, fraction):
    assert parse_budget(text) == Budget(fraction=fraction)


@pytest.mark.parametrize("text", ["", "MB", "-5", -5, 0, "0", 1.5, "1.5", 0.0, float("nan"), "3 apples", True, [], 2**63, "1e6"])
def test_refused(text):
    with pytest.raises(BudgetError):
        parse_budget(text)


def test_resolve():
    assert resolve(None, 10, 100) == 100
    assert resolve("min", 10, 100) == 10
    assert resolve(0.5, 10, 100) == 50
    assert resolve("20b", 10, 100) == 20
    assert resolve(1000, 10, 100) == 1000
    with pytest.raises(BudgetError, match="5 bytes was asked for, the smallest feasible is 10 bytes"):
        resolve(0.05, 10, 100)

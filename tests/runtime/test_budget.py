import numpy as np
import pytest

from flexcomp.errors import BudgetError
from flexcomp.runtime.budget import Budget, note_minimum, parse_budget, resolve, set_by
from flexcomp.units import Units, enough


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (5, 5), ("32000000", 32_000_000), ("64MB", 64 * 10**6), ("64MiB", 64 * 2**20), ("1.5 mib", 3 * 2**19),
        ("2GB", 2 * 10**9), ("7kb", 7000),
        ("12M", 12 * 10**6), ("3 k", 3000), ("1.5g", 15 * 10**8), ("12b", 12), (np.int64(9), 9), (str(2**62 + 1), 2**62 + 1),
    ],
)  # fmt: skip
def test_bytes(text, nbytes):
    assert parse_budget(text) == Budget(nbytes=nbytes)


@pytest.mark.parametrize(
    ("text", "fraction"),
    [(0.1, 0.1), ("0.25", 0.25), (1.0, 1.0), (".5", 0.5), ("10%", 0.1), (" 2.5 % ", 0.025), ("100%", 1.0)],
)
def test_fractions(text, fraction):
    assert parse_budget(text) == Budget(fraction=fraction)


@pytest.mark.parametrize(
    "text",
    ["", "MB", "-5", -5, 0, "0", 1.5, "1.5", 0.0, float("nan"), "3 apples", True, [], 2**63, "1e6", "0%", "101%", "%", "1%B"],
)
def test_refused(text):
    with pytest.raises(BudgetError):
        parse_budget(text)


@pytest.mark.parametrize("text", ["all", " ALL "])
def test_everything_resident(text):
    assert parse_budget(text) == Budget(largest=True)


@pytest.mark.parametrize("text", [None, "none", "None"])
def test_the_default(text):
    assert parse_budget(text) == Budget()


def test_resolve():
    assert resolve(None, 10, 60, 100) == resolve("none", 10, 60, 100) == 60
    assert resolve("all", 10, 60, 100) == 100
    assert resolve("min", 10, 60, 100) == 10
    assert resolve(0.5, 10, 60, 100) == resolve("50%", 10, 60, 100) == 50
    assert resolve("20b", 10, 60, 100) == 20
    assert resolve(1000, 10, 60, 100) == 1000
    with pytest.raises(BudgetError, match=r"^a budget of 5 B is too small: the smallest feasible budget is 10 B$"):
        resolve(0.05, 10, 60, 100)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            999_999,
            "999,999 B is too small: the smallest feasible budget is 1,204,224 B, set by layer c: 1,100,000 B of x, 7 B of y",
        ),
        ("1MB", "1.00 MB is too small: the smallest feasible budget is 1.21 MB, set by layer c: 1.10 MB of x, 7 B of y"),
        ("1MiB", "1.00 MiB is too small: the smallest feasible budget is 1.15 MiB, set by layer c: 1.05 MiB of x, 7 B of y"),
        ("5%", "976.56 KiB is too small: the smallest feasible budget is 1.15 MiB, set by layer c: 1.05 MiB of x, 7 B of y"),
    ],
)
def test_refusals_speak_the_units_that_were_asked_in(asked, words):
    note = note_minimum("c", {"x": 1_100_000, "y": 7, "z": 0})
    with pytest.raises(BudgetError) as caught:
        resolve(asked, 1_204_224, 20_000_000, 20_000_000, note)
    assert str(caught.value) == f"a budget of {words}"


@pytest.mark.parametrize("note", ["", "{", "[]", '{"layer": 3}', '{"layer": "c", "needs": {"x": "y"}}', "null"])
def test_notes_that_say_nothing(note):
    assert set_by(note, Units.BINARY) == ""


@pytest.mark.parametrize("units", Units)
@pytest.mark.parametrize("nbytes", [1, 999, 1000, 1023, 1024, 1025, 1_204_224, 2**20, 20_079_616, 10**9 + 1, 2**62 + 1])
def test_what_is_called_enough_is_enough(nbytes, units):
    """And not more than a hundredth of a unit too much."""
    text = enough(nbytes, units).replace(",", "")
    given = parse_budget(text)
    assert nbytes <= given.nbytes <= max(1.011 * nbytes, nbytes) and (given.units is units or text.endswith(" B"))

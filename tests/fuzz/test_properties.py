"""The suite draws the same examples in every run, and `make fuzz` knows every property test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import properties

TESTS = Path(__file__).parents[1]


def numbers() -> list[int]:
    """What one run of a property test draws."""
    drawn: list[int] = []

    @given(st.integers())
    def note(number: int) -> None:
        drawn.append(number)

    note()
    return drawn


def calls(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def test_examples_are_the_same_in_every_run() -> None:
    assert numbers() == numbers()
    assert settings.default.database is None and settings.default.deadline is None


def test_only_the_profile_says_how_examples_are_drawn() -> None:
    for path in TESTS.rglob("*.py"):
        for call in calls(ast.parse(path.read_text()), "settings"):
            own = {keyword.arg for keyword in call.keywords} & {"derandomize", "deadline", "database"}
            assert not own, f"{path}: {own}"


def test_examples_drawn_within_a_test_are_found_by_its_mark() -> None:
    """Hypothesis marks what it decorates itself."""
    for file in map(Path, properties.files()):
        for test in ast.parse(file.read_text()).body:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                marked = "pytest.mark.hypothesis" in map(ast.unparse, test.decorator_list)
                assert marked or not [call for part in test.body for call in calls(part, "given")], f"{file.name}: {test.name}"

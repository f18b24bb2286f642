from __future__ import annotations

import pytest
from hypothesis import given

from flexcomp.plan.placement import (
    Assignment,
    Record,
    check_assignment,
    min_cost_flow,
    object_bound,
    objects_by_breadth,
    objects_by_size,
    objects_by_size_improved,
    objects_in_order,
    search_objects,
)

from .data import many_records, usage

METHODS = {
    "by size": objects_by_size,
    "by size improved": objects_by_size_improved,
    "by breadth": objects_by_breadth,
    "in order": objects_in_order,
    "min-cost flow": min_cost_flow,
    "search": lambda records: search_objects(records, 20),
}


# MiB: the lower bound and the best row of Table 1 of the paper
@pytest.mark.parametrize(
    ("network", "bound", "best"),
    [
        ("mobilenet_v1", 4.594, 4.594),
        ("mobilenet_v2", 6.604, 6.699),
        ("deeplab_v3", 6.105, 6.437),
        ("posenet", 6.347, 6.347),
    ],
)
def test_the_best_published_figure_is_reached(network: str, bound: float, best: float) -> None:
    tensors = usage(network)
    assert object_bound(tensors) / 2**20 == pytest.approx(bound, abs=6e-4)
    assignment = search_objects(tensors, 300)
    assert check_assignment(tensors, assignment) is None
    assert assignment.nbytes / 2**20 <= best + 6e-4


# MiB: rows of Table 1 that leave nothing open
@pytest.mark.parametrize(
    ("network", "in_order", "flow"),
    [("mobilenet_v1", 4.594, 5.359), ("mobilenet_v2", 8.039, 7.513), ("posenet", 6.347, 7.359)],
)
def test_prior_work_gives_the_published_figures(network: str, in_order: float, flow: float) -> None:
    tensors = usage(network)
    assert objects_in_order(tensors).nbytes / 2**20 == pytest.approx(in_order, abs=6e-4)
    assert min_cost_flow(tensors).nbytes / 2**20 == pytest.approx(flow, abs=6e-4)


@given(many_records)
def test_every_method_gives_valid_objects_no_smaller_than_the_bound(tensors: list[Record]) -> None:
    made = {name: method(tensors) for name, method in METHODS.items()}
    for name, assignment in made.items():
        assert check_assignment(tensors, assignment) is None, name
        assert assignment.nbytes >= object_bound(tensors)
    assert made["search"].nbytes <= min(assignment.nbytes for assignment in made.values())


@pytest.mark.parametrize("name", METHODS)
def test_nothing_to_assign(name: str) -> None:
    assert METHODS[name]([]) == Assignment((), ())


def test_wrong_assignments_are_found() -> None:
    tensors = [Record(0, 2, 64), Record(1, 3, 128), Record(2, 4, 64)]
    assert check_assignment(tensors, Assignment((0, 1, 0), (64, 128))) is None
    assert "2 objects" in check_assignment(tensors, Assignment((0, 1), (64, 128)))
    assert "has no object" in check_assignment(tensors, Assignment((0, 2, 0), (64, 128)))
    assert "larger than its object" in check_assignment(tensors, Assignment((0, 0, 1), (64, 128)))
    assert "share object 1" in check_assignment(tensors, Assignment((1, 1, 0), (64, 128)))

"""Placement of tensors in memory: usage records in, offsets or shared objects out."""

from .exact import Found, fit, smallest
from .objects import (
    Assignment,
    assign_in_order,
    min_cost_flow,
    object_bound,
    objects_by_breadth,
    objects_by_size,
    objects_by_size_improved,
    objects_in_order,
    positional_maxima,
    search_objects,
)
from .offsets import (
    Placement,
    greedy_by_breadth,
    greedy_by_size,
    greedy_in_order,
    lower_bound,
    lowest_fit,
    place_in_order,
    search,
)
from .records import Record, breadths, conflicts, naive
from .strip_packing import strip_packing
from .tight import swiftly_fits, tight
from .validate import check_assignment, check_placement

__all__ = [
    "Assignment",
    "Found",
    "Placement",
    "Record",
    "assign_in_order",
    "breadths",
    "check_assignment",
    "check_placement",
    "conflicts",
    "fit",
    "greedy_by_breadth",
    "greedy_by_size",
    "greedy_in_order",
    "lower_bound",
    "lowest_fit",
    "min_cost_flow",
    "naive",
    "object_bound",
    "objects_by_breadth",
    "objects_by_size",
    "objects_by_size_improved",
    "objects_in_order",
    "place_in_order",
    "positional_maxima",
    "search",
    "search_objects",
    "smallest",
    "strip_packing",
    "swiftly_fits",
    "tight",
]

"""Shorter JSON: equal parts once, lists by their differences or by runs. `data.js` reads it.

    {"shared": [part, …], "value": coded}
    {"$s": 3}             the fourth shared part
    {"$r": [0, 17, 2, 1]} a list: seventeen times 0, once 2
    {"$d": [5, 1, 1]}     a list of integers by differences: 5, 6, 7; coded again where that is shorter
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby, pairwise

_LEAST = 24  # characters of a part that is worth sharing


def encode(value: object) -> dict:
    """The value in short. Objects in it have no keys that begin with $."""
    counts: Counter[str] = Counter()
    _count(value, counts)
    places: dict[str, int] = {}
    shared: list[object] = []

    def short(part: object, *, whole: bool = False) -> object:
        text = _text(part)
        if not whole and counts[text] > 1 and len(text) >= _LEAST:
            if text not in places:
                places[text] = len(shared)
                shared.append(None)
                shared[places[text]] = short(part, whole=True)
            return {"$s": places[text]}
        if isinstance(part, dict):
            return {key: short(each) for key, each in part.items()}
        if isinstance(part, list):
            plain = [short(each) for each in part]
            return min([plain, *_coded(part)], key=lambda one: len(_text(one)))
        return part

    coded = short(value)
    return {"shared": shared, "value": coded}


def decode(coded: dict) -> object:
    """What was encoded."""

    def whole(part: object) -> object:
        if isinstance(part, list):
            return [whole(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$s" in part:
            return whole(coded["shared"][part["$s"]])
        if "$r" in part:
            return [value for value, count in zip(part["$r"][::2], part["$r"][1::2], strict=True) for _ in range(count)]
        if "$d" in part:
            steps, total, result = whole(part["$d"]), 0, []
            for step in steps:
                total += step
                result.append(total)
            return result
        return {key: whole(each) for key, each in part.items()}

    return whole(coded["value"])


def _text(part: object) -> str:
    return json.dumps(part, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _count(value: object, counts: Counter[str]) -> None:
    """How often each list, object and string occurs; parts of parts that occur again are counted once."""
    if isinstance(value, dict | list | str):
        text = _text(value)
        counts[text] += 1
        if counts[text] > 1 or isinstance(value, str):
            return
        for each in value.values() if isinstance(value, dict) else value:
            _count(each, counts)


def _coded(part: list) -> list[dict]:
    """The list by runs and by differences, as far as it can be."""
    if any(isinstance(each, dict | list) for each in part):
        return []
    found = [{"$r": _runs(part)}]
    if len(part) > 2 and all(type(each) is int for each in part):
        steps = [part[0], *(after - before for before, after in pairwise(part))]
        found += [{"$d": steps}, {"$d": {"$r": _runs(steps)}}]
    return found


def _runs(part: list) -> list:
    # True and 1 are equal, and are not the same.
    groups = groupby(part, key=lambda each: (type(each), each))
    return [item for (_, value), run in groups for item in (value, sum(1 for _ in run))]

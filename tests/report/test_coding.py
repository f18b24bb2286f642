"""Shorter JSON for a report's data, and back."""

from __future__ import annotations

import json

import pytest

from flexcomp.report.html.coding import decode, encode

WORDS = "fewer bytes to load than winograd"


@pytest.mark.parametrize(
    ("value", "most"),
    [
        ([7] * 500 + [8] * 500, 60),  # by runs
        (list(range(1000, 2000)), 60),  # by differences, all equal
        ([n * n for n in range(100)], 420),  # by differences
        ([True] * 40 + [1] * 40 + [1.0] * 40, 70),  # equal in Python, not in JSON
        ([WORDS, None] * 50, 1000),  # equal strings once
        ([{"a": [1, 2, WORDS]}] * 60 + [{"b": {"a": [1, 2, WORDS]}}], 1000),  # and equal objects
        ([[], {}, None, "", [[]], [0.1, "</script>"], -(2**52)], 120),
    ],
)
def test_it_is_shorter_and_the_same_after_decoding(value, most):
    text = json.dumps(encode(value), separators=(",", ":"))
    assert json.dumps(decode(json.loads(text))) == json.dumps(value)
    assert len(text) <= most, text

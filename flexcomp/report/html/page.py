"""The page: a template with the style, the scripts and the data in it."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from pathlib import Path

from flexcomp.files import replacing
from flexcomp.report.html.coding import encode

SCRIPTS = ("data", "words", "draw", "ladder", "view", "memory", "plan", "smallest", "gains", "layers", "main")
_PLACES = ("TITLE", "STYLE", "DATA", "SCRIPT")


def write_report(data: dict, path: str | Path) -> None:
    """Write the report of `report_data` as one HTML file."""
    with replacing(path) as partial:
        partial.write_text(page(data), encoding="utf-8")


def page(data: dict) -> str:
    """The text of the file. Names come from models of strangers: as data, in which no tag can begin."""
    text = json.dumps(encode(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "TITLE": escape(f"{data['facts']['model']} · flexcomp"),
        "STYLE": _asset("style.css"),
        "DATA": text.replace("<", "\\u003c"),
        "SCRIPT": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    }
    pieces = _asset("page.html").split("@@")  # text, place, text, place, …
    assert tuple(pieces[1::2]) == _PLACES
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")

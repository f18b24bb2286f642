"""How sessions and artifacts look in a notebook: a small table of their plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from flexcomp.units import enough, human_bytes


def ladder_html(title: str, ladder: Iterable[Mapping[str, Any]], used: int | None = None) -> str:
    """A row for each plan, as `RungInfo` has its facts; that with the budget `used` is bold."""
    rows = []
    for rung in ladder:
        cells = (
            enough(rung["budget_bytes"]),
            human_bytes(rung["streamed_bytes"]),
            f"{rung['predicted_ms']:.2f} ms",
        )
        weight = ' style="font-weight: bold"' if rung["budget_bytes"] == used else ""
        rows.append(f"<tr{weight}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("budget", "read per inference", "predicted"))
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

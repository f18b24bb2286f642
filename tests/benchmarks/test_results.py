"""Results: tables, JSON with the conditions of a run, and pages made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.results import Results, Table, renewed

PAGE = "# Page\n\n<!-- results: one.json -->\n{}<!-- end of results -->\n\nText.\n"


def test_rows_are_printed_as_they_come(capsys):
    table = Table({"network": "", "ms": ".2f"}, "latency")
    table.add("a", np.float32(1.5))
    assert capsys.readouterr().out == "latency\n\n| network | ms |\n| --- | --- |\n| a | 1.50 |\n"
    table.add("b", None)
    assert capsys.readouterr().out == "| b |  |\n"
    with pytest.raises(ValueError, match="3 cells for 2 columns"):
        table.add("c", 1, 2)


def test_a_page_is_made_of_the_json_that_a_run_wrote(tmp_path):
    table = Table({"network": "", "ms": ".2f"})
    table.add("a", 2)
    run = Results("python -m benchmarks.x", "2026-01-31", {"cores": 2, "processor": "P"}, 1.0)
    run.write(tmp_path / "one.json", [table], more=1)
    assert json.loads((tmp_path / "one.json").read_text())["more"] == 1
    (tmp_path / "page.md").write_text(PAGE.format("| old |\n"))
    made = "2026-01-31, 2 cores of P, `python -m benchmarks.x`:\n\n| network | ms |\n| --- | --- |\n| a | 2.00 |\n"
    assert renewed(tmp_path / "page.md") == PAGE.format(made)


def test_conditions_of_a_run(monkeypatch):
    monkeypatch.setattr("sys.argv", ["compare", "a network"])
    run = Results.begin("benchmarks.compare")
    assert run.command == "python -m benchmarks.compare 'a network'" and run.machine["cores"] >= 1 and 0 <= run.idle <= 1


@pytest.mark.parametrize("page", sorted(Path("docs/measurements").glob("*.md")), ids=lambda page: page.stem)
def test_pages_have_the_tables_of_their_json_files(page):
    assert page.read_text() == renewed(page)

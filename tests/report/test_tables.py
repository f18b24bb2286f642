"""Tables fit a terminal of 80 columns, whatever they hold."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.networks.graph import Graph
from flexcomp.cli import bench, demo, remote, run, tune
from flexcomp.report import (
    choice_table,
    describe,
    ladder_table,
    layer_table,
    plan_facts,
    plan_table,
    timeline,
    timeline_table,
)
from flexcomp.runtime import parse_budget
from tests.uncompiled import planned

LARGE = 999_999_999
KERNEL = "im2col_gemm 12 slices of 1764 pixels 14×32"


@pytest.fixture(scope="module")
def program():
    g = Graph("network", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 3, 56, 56)), 64, 3))
    x = g.relu(g.conv(x, 64, 3))
    x = g.op("Flatten", g.max_pool(x, 8, 8), axis=1, channels=64 * 7 * 7)
    return planned(g.model(g.dense(x, 256), (1, 256)))


def tables(program):
    rung = program.rungs[0]
    facts = describe(program)
    layer = max(facts["layers"], key=lambda one: len(one["description"]))
    wide = {**facts, "layers": [{**layer, "name": f"{layer['name']}.winograd.F(4)", "flops": 999e9, "weights_bytes": LARGE}]}
    yield layer_table(facts)
    yield layer_table(wide)
    choices = choice_table(facts)
    assert choices is not None
    yield choices
    yield ladder_table({"ladder": [{**one, "budget_bytes": LARGE, "streamed_bytes": LARGE} for one in facts["ladder"]]})
    predicted = timeline.predicted(program, rung)
    yield plan_table(plan_facts(program, rung, predicted))
    yield timeline_table(program, rung, [predicted, replace(predicted, label="measured", latency=99.99)])
    rates = {
        "bound_by": "computing", "gflops": 1234.5, "peak_share": 2.34, "read_share": 0.5, "gb_per_s": 123.4, "time_share": 1.0,
        "time_ms": 9999.999,
    }  # fmt: skip
    kernel = {**rates, "name": "conv2d.123.winograd.F(4)", "description": layer["description"], "kernel": KERNEL}
    report = {"model": "network", "layers": [kernel], "groups": [{**rates, "group": "direct and matmul", "layers": 100}]}
    yield bench._layers(report)
    yield bench._groups(report)
    measurement = SimpleNamespace(
        label="25 %", budget_nbytes=LARGE, overhead_nbytes=LARGE, error=1e-6, report={"median_ms": 9999.9, "bytes_read": LARGE}
    )
    yield demo._table([SimpleNamespace(network="densenet121", measurement=measurement, agrees=True)])
    tuned = SimpleNamespace(
        description=layer["description"], count=10, trials=100, default=KERNEL, default_seconds=1.0, best=KERNEL,
        best_seconds=0.5, saved=5.0,
    )
    yield tune._table(SimpleNamespace(layers=[tuned]))
    shares = {"asked_bytes": LARGE, "budget_bytes": LARGE, "next_budget_bytes": LARGE, "arena_bytes": LARGE, "bytes_read": LARGE}
    facts = {**shares, "median_ms": 1.0, "latency_ms": [1.0] * 1000, "stall_ms": 1.0, "threads": 16, "machine": "aarch64"}
    yield remote._run_table("network.so", facts, parse_budget("99.5%"))
    memory = {"idle_rss_bytes": 1, "peak_rss_bytes": LARGE, "read_ms": 1.0}
    start = {"start_ms": 99.99, "first_ms": 9999.99, "prepared_bytes": LARGE, "prepare_ms": 9999.99, "help_ms": 9999.99}
    yield run._table("network.so", {**facts, **memory, **start}, parse_budget(LARGE))
    one = SimpleNamespace(budget_bytes=LARGE, arena_bytes=LARGE, median_ms=9999.99, stall_ms=[9999.99], bytes_read=[LARGE])
    for extents in ({}, {"n": 512}):
        shape = SimpleNamespace(extents=extents, predicted_ms={LARGE: 9999.99})
        yield remote._measured_table("network.so", [(shape, one)])


def test_tables_fit_80_columns(program):
    """And no heading is cut or folded, nor any number: only text is."""
    for table in tables(program):
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(table)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= 80 and "…" not in console.file.getvalue(), lines
        names = [str(column.header) for column in table.columns if column.header]
        if table.show_header:
            assert any(all(name in line for name in names) for line in lines), lines
        for column in table.columns:
            if column.justify == "right":
                cells = [str(cell) for cell in column.cells if str(cell)]
                assert all(part in console.file.getvalue() for cell in cells for part in cell.splitlines()), cells

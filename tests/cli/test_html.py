"""`flexcomp inspect --html`: the figures are those of --json, and a browser shows them without errors or requests."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from flexcomp.plan import minimum_budget, plan, simulate
from flexcomp.program import decode_program, from_program
from flexcomp.report.html.coding import decode
from flexcomp.report.html.page import page
from flexcomp.report.replanned import problem_of
from flexcomp.runtime import read_program
from flexcomp.units import enough, human_bytes
from tests.report.browser import CHROMIUM, chromium

HOSTILE = '</script><img src="https://example.com/x" onerror="window.broken = 1"><!--<script>'
TEXT = "document.body.innerText"


def data_of(html: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return decode(json.loads(text))


def choose(tab, index: int) -> None:
    """Move the slider of budgets."""
    rung = "document.getElementById('rung')"
    tab.evaluate(f"{rung}.value = {index}, {rung}.dispatchEvent(new Event('input'))")


@pytest.fixture(scope="module")
def report(cli, library, tmp_path_factory):
    path = tmp_path_factory.mktemp("html") / "report.html"
    done = cli("inspect", library, "--html", path, "--json")
    assert done.returncode == 0, done.stderr
    facts, html = json.loads(done.stdout), path.read_text()
    return SimpleNamespace(path=path, html=html, facts=facts, data=data_of(html), program=decode_program(read_program(library)))


@pytest.fixture(scope="module")
def tab(report, tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with chromium(tmp_path_factory.mktemp("profile")) as tab:
        tab.resize(1200)
        tab.open(report.path)
        yield tab


def test_the_data_are_those_of_inspect(cli, library, report):
    gains = report.facts.pop("gains")
    assert (report.data["facts"], report.data["gains"]) == (report.facts, gains)
    assert json.loads(cli("inspect", library, "--json").stdout) == report.facts
    for index in (0, len(report.facts["ladder"]) // 2):
        budget = str(report.facts["ladder"][index]["budget_bytes"])
        shown = json.loads(cli("inspect", library, "--budget", budget, "--json").stdout)["plan"]["layers"]
        plan, names, per_ms = report.data["plans"][index], report.data["names"], report.data["per_ms"]
        columns = plan["layers"]
        assert [names[layer] for layer in columns["layer"]] == [layer["name"] for layer in shown]
        for key in ("steps", "kept_bytes", "loaded_bytes"):
            assert columns[key] == [layer[key] for layer in shown]
        for key, of in (("computing", "predicted_ms"), ("waiting", "waiting_ms")):
            assert [ticks / per_ms for ticks in columns[key]] == pytest.approx([layer[of] for layer in shown], abs=1e-4)
        assert plan["steps"]["end"][-1] / per_ms == pytest.approx(report.facts["ladder"][index]["predicted_ms"], rel=0.005)


def test_bounds_and_the_needs_of_the_smallest_budget(report):
    for rung in report.facts["ladder"]:
        assert 0 < rung["bound_ms"] <= rung["predicted_ms"]
    found = report.facts["smallest"]
    assert sum(found["parts"].values()) == found["needed_bytes"] <= report.facts["min_budget_bytes"]
    needed = [one for one in found["alive"] if one["kind"] in found["parts"] and one["over"] is None]
    assert sum(one["bytes"] for one in needed) == found["needed_bytes"]


def test_the_problem_of_a_rung_is_the_one_that_was_planned(report):
    """So a gain is the effect of the change alone."""
    program, assumed = report.program, from_program(report.program)
    assert minimum_budget(problem_of(program, program.rungs[0], assumed)).nbytes == program.rungs[0].budget
    for rung in program.rungs[:: len(program.rungs) // 3]:
        problem = problem_of(program, rung, assumed)
        again = simulate(problem, plan(problem, rung.budget)).latency
        assert again == pytest.approx(rung.seconds, rel=0.03)  # searches begin elsewhere


def test_gains_by_kind(report):
    gains = report.data["gains"]
    assert {gain["change"] for gain in gains} == {"storage", "weights"}  # no smaller image: a flattened one goes into a product
    smallest = {key: next(g for g in gains if g["change"] == key)["at"][0] for key in ("storage", "weights")}
    before = report.facts["ladder"][0]["predicted_ms"]
    for one in smallest.values():
        assert one["before_ms"] == before and one["after_ms"] < 0.98 * before
    narrow = {gain["dtype"]: gain["at"][0]["after_ms"] for gain in gains if gain["change"] == "weights" and not gain["layer"]}
    assert narrow["int8"] < narrow["float16"] < before
    assert all(one["after_ms"] <= one["before_ms"] for gain in gains for one in gain["at"])


def test_a_browser_shows_the_figures(report, tab):
    text, facts = tab.evaluate(TEXT), report.facts
    assert tab.problems == [] and tab.requests == [report.path.as_uri()]
    rung = facts["ladder"][0]
    for words in (
        facts["model"], enough(facts["min_budget_bytes"]), enough(facts["resident_bytes"]), human_bytes(facts["weights_bytes"]),
        f"{rung['predicted_ms']:.2f} ms", f"bound {rung['bound_ms']:.2f} ms", human_bytes(rung["streamed_bytes"]),
        facts["smallest"]["layer"], "int8 weights for all layers",
    ):  # fmt: skip
        assert words in text, words
    for gain in report.data["gains"]:
        shown = [f"{one['after_ms']:.2f}" in text for one in gain["at"]]
        assert all(shown) or gain["layer"] in text.partition("would gain less than 1 %")[2]


def test_another_plan_is_chosen_by_key_and_by_its_dot(report, tab):
    for script, index in (
        ("document.getElementById('larger').click()", 1),
        ("document.querySelectorAll('svg .target')[2].dispatchEvent(new Event('click'))", 2),
    ):
        tab.evaluate(script)
        rung = report.facts["ladder"][index]
        chosen = tab.evaluate("document.getElementById('chosen').innerText")
        assert enough(rung["budget_bytes"]) in chosen and f"{rung['predicted_ms']:.2f} ms" in chosen
        assert f"{rung['steps']} step" in tab.evaluate("document.getElementById('plan-words').innerText")
    assert tab.problems == []


def test_a_layer_opens_to_its_candidates(report, tab):
    layer = next(layer for layer in report.facts["layers"] if len(layer["candidates"]) > 1 and any(layer["slices"]))
    index = next(index for index, count in enumerate(layer["slices"]) if count)
    choose(tab, index)
    name = json.dumps(layer["name"])
    tab.evaluate(f"[...document.querySelectorAll('button.row')].find((one) => one.innerText === {name}).click()")
    more = tab.evaluate("document.querySelector('tr.more').innerText")
    assert layer["why"][index] in more
    for one in layer["candidates"]:
        assert one["implementation"] in more and f"{one['predicted_ms']:.3f}" in more
        assert one["layer"] or one["passed_over"] in more


def test_rectangles_and_bars_are_described(report, tab):
    choose(tab, 0)
    names = [box["name"] for box in report.facts["smallest"]["alive"]]
    pointed = """((id, heights) => heights.flatMap((y) => [...Array(36).keys()].map((x) => {
        const canvas = document.getElementById(id), box = canvas.getBoundingClientRect();
        const at = { clientX: box.left + (x + 4) / 40 * box.width, clientY: box.top + y * box.height, bubbles: true };
        canvas.dispatchEvent(new PointerEvent('pointermove', at));
        return document.getElementById('pointed').innerText;
    })))"""
    found = tab.evaluate(f"{pointed}('memory', {[y / 20 for y in range(2, 18)]})")
    assert any(name in words for name in names for words in found)
    computing, loading = (tab.evaluate(f"{pointed}('lanes', [{y}])") for y in (0.3, 0.7))
    assert all(words.startswith("step ") for words in computing) and any(" waits " in words for words in computing)
    assert any(words.startswith("load of ") for words in loading)
    before = tab.evaluate("document.getElementById('memory').toDataURL()")
    tab.evaluate("document.getElementById('memory').dispatchEvent(new KeyboardEvent('keydown', { key: '+' }))")
    assert tab.evaluate("document.getElementById('memory').toDataURL()") != before
    assert tab.problems == []


@pytest.mark.parametrize(("width", "dark"), [(375, False), (375, True), (1200, True), (320, False)])
def test_nothing_is_wider_than_the_window(tab, width, dark):
    tab.resize(width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 23, 26)") == dark
    assert tab.evaluate("document.querySelector('#ladder svg').clientWidth") < width


def test_names_stay_text(report, tab, tmp_path):
    data = json.loads(json.dumps(report.data))
    data["facts"]["model"] = HOSTILE
    data["names"] = [f"{HOSTILE}{name}" for name in data["names"]]
    data["facts"]["smallest"]["layer"] = HOSTILE
    for layer in data["facts"]["layers"]:
        layer["node"] = layer["description"] = HOSTILE
    path = tmp_path / "hostile.html"
    path.write_text(page(data))
    assert HOSTILE not in path.read_text() and data_of(path.read_text())["facts"]["model"] == HOSTILE
    tab.requests.clear()
    tab.open(path)
    assert tab.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert tab.evaluate("document.title").startswith(HOSTILE)
    assert tab.evaluate("document.images.length + (window.broken || 0)") == 0
    assert tab.problems == [] and tab.requests == [path.as_uri()]


def test_the_policy_forbids_requests(tab):
    """A browser that was told to load something refuses."""
    tab.evaluate("fetch('https://example.com/').catch(() => 0)")
    assert any("Content Security Policy" in problem for problem in tab.problems)
    tab.problems.clear()


def test_it_is_refused_where_it_cannot_be_written(cli, library, tmp_path):
    done = cli("inspect", library, "--html", tmp_path)
    assert done.returncode == 4 and "it is a folder" in done.stderr
    done = cli("inspect", library, "--html", library)
    assert done.returncode == 4 and "it is what is being read" in done.stderr

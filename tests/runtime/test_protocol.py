"""The protocol between the loader and those it reads for, explored: every order in which their steps may follow each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.runtime import native

_OPTIONS = ["-O2", "-U_FORTIFY_SOURCE", '-DFLEXCOMP_SYNC="explorer.h"', f"-I{Path(__file__).parent}"]
_STORE = "    value_.store(value, std::memory_order_seq_cst);\n"
_ASLEEP = "sleepers_.load(std::memory_order_seq_cst) != 0"


def test_every_order_of_steps_is_right(tmp_path):
    done = native.run(native.compile(tmp_path, "loader_protocol.cc", native.LOADER, _OPTIONS))
    print(done.stdout)
    assert int(done.stdout.splitlines()[-1].split()[0]) > 1_000_000  # states


# Rules by name: their file, how they are broken, and what the explorer finds then, which begins with the scenario.
RULES = {
    "an inference is skipped": (
        "storage/loader.cc", "    started_.WaitOther(inference - 1);",
        "    if (BROKEN) inference = started_.WaitOther(inference - 1);\n    else started_.WaitOther(inference - 1);",
        "all read ahead: a step begins without its weights",
    ),
    "an error is taken for an interruption": (
        "storage/loader.cc", "if (interrupted() || failure.error == 0) return",
        "if (interrupted() || (BROKEN ? failure.error != 5 : failure.error == 0)) return",
        "faults, all ahead: an inference began anew for no reason",
    ),
    "reading ahead does not wait": (
        "storage/loader.cc", "if (!AwaitComputed(turn, after, j, next) || !BeginLoad",
        "if ((!BROKEN && !AwaitComputed(turn, after, j, next)) || !BeginLoad",
        "all read ahead: ",
    ),
    "a read begins behind an interruption": (
        "storage/loader.cc", "    if (interrupted_) {\n", "    if (!BROKEN && interrupted_) {\n",
        "switches, all ahead and pinned: a read begins into memory that was given back",
    ),
    "what is to be prepared is read over": (
        "storage/loader.cc", "  while (!there && !ReadsApart(load) && Shares(load))\n",
        "  while (!BROKEN && !there && !ReadsApart(load) && Shares(load))\n",
        "prepared: ",
    ),
    "a preparation begins behind an interruption": (
        "storage/loader_prepare.cc",
        ("  if (!interrupted_) {", "given_up = interrupted() ||"),
        ("  if (BROKEN || !interrupted_) {", "given_up = (!BROKEN && interrupted()) ||"),
        "switches, prepared and pinned: memory was given back in which something is prepared",
    ),
    "what does not stay is read early": (
        "storage/loader.h", "return load.kept || (load.pinned", "return BROKEN || load.kept || (load.pinned",
        "all read ahead: ",
    ),
    "what does not stay is not read": (
        "storage/loader.cc", "(IsReadOnce(load) && (resident_", "(BROKEN ? resident_ : IsReadOnce(load) && (resident_",
        "all read ahead: ",
    ),
    "what stays is never read": (
        "storage/loader.cc", "resident_ || j < early_load_)", "BROKEN || resident_ || j < early_load_)",
        "all read ahead: a step begins without its weights",
    ),
    "what is read apart is not copied to where it is prepared": (
        "storage/loader_prepare.cc", "    if (stored != load.target) std::memcpy",
        "    if (!BROKEN && stored != load.target) std::memcpy",
        "apart: a part is prepared that is not to be",
    ),
    "who waits for nothing helps": (
        "base/shared_work.h", "|| !wanted()) return", "|| (!wanted() && !BROKEN)) return",
        "prepared: an inference prepares what it does not wait for",
    ),
    "two pieces of work look the same": (
        "base/shared_work.h", "++number_ << 32 | parts", "(BROKEN ? 0 : ++number_ << 32) | parts",
        "prepared: ",
    ),
    "work ends before its last part": (
        "base/shared_work.h", "    done_.WaitEqual(parts_);", "    if (!BROKEN) done_.WaitEqual(parts_);",
        "prepared: ",
    ),
    "a refusal drops reads that somebody waits for": (
        "storage/loader.cc", "  if (Drain()) Fail(turn, failure);", "  if (BROKEN || Drain()) Fail(turn, failure);",
        "refused, ahead beside others: nobody can go on",
    ),
    "what a first inference takes is prepared too early": (
        "storage/loader.cc", "loads_[j].cold >= 0 ? loads_[j].cold_after : loads_[j].after",
        "!BROKEN && loads_[j].cold >= 0 ? loads_[j].cold_after : loads_[j].after",
        "cold, all pinned: ",
    ),
    "what was prepared out of the arena is prepared again": (
        "storage/loader_prepare.cc", "if (to_the_end_ && error == 0) warm_",
        "if (!BROKEN && to_the_end_ && error == 0) warm_",
        "lane, cold, all pinned: ",
    ),
    "preparing out of the arena is given up for who works elsewhere": (
        "storage/loader_prepare.cc", "(!to_the_end_ && abort_.load(std::memory_order_relaxed))",
        "((BROKEN || !to_the_end_) && abort_.load(std::memory_order_relaxed))",
        "lane, cold, all pinned: what was read is given up for nothing",
    ),
    "nothing is prepared behind a first inference": (
        "storage/loader.cc", "stage_ = StartsCold() && !turn().filling ? Stage::kCold",
        "stage_ = !BROKEN && StartsCold() && !turn().filling ? Stage::kCold",
        "cold, all pinned: ",
    ),
    "filling behind a first inference ends before its last load": (
        "storage/loader.cc", "  if (turn.filling) {\n    if (!Drain()) return;\n",
        "  if (turn.filling) {\n    if (!BROKEN && !Drain()) return;\n",
        "filled behind, cold: ",
    ),
    "turns are used again too soon": (
        "storage/loader.h", "[inference % kTurns]", "[inference % (BROKEN ? 2 : kTurns)]", "all read ahead: ",
    ),
    "a sleeper is missed": (
        "base/counter.h", f"{_STORE}    WakeUp();\n",
        f"    const bool asleep = {_ASLEEP};\n{_STORE}    if (BROKEN ? asleep : {_ASLEEP}) value_.notify_all();\n",
        "all read ahead: nobody can go on",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def breakable(tmp_path_factory) -> Path:
    """The explorer of a loader each of whose rules is broken on demand: compiled once for all of them."""
    folder = tmp_path_factory.mktemp("breakable")
    sources = folder / "src"
    shutil.copytree(native.SRC, sources)
    for number, (file, rule, broken, _) in enumerate(RULES.values(), 1):
        text = (sources / file).read_text()
        for old, new in [(rule, broken)] if isinstance(rule, str) else zip(rule, broken, strict=True):
            assert text.count(old) == 1
            text = text.replace(old, new.replace("BROKEN", f"(explore::broken == {number})"))
        (sources / file).write_text(text)
    return native.compile(folder, "loader_protocol.cc", native.LOADER, ["-O1", *_OPTIONS[1:]], sources=sources)


@pytest.mark.parametrize("name", RULES)
def test_what_a_missing_rule_breaks_is_found(breakable, name):
    """The explorer is as good as what it finds."""
    *_, found = RULES[name]
    done = native.run(breakable, found.partition(": ")[0], [*RULES].index(name) + 1, status=1)
    assert found in done.stdout and "after" in done.stdout


def test_nothing_is_found_while_no_rule_is_broken(breakable):
    native.run(breakable, "cold, all pinned", 0)

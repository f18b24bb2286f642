"""The protocol between the loader and those it reads for, explored: every order in which their steps may follow each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kept import made
from tests.runtime import native

# Small code leaves little on the stacks that nobody reads. Such remains make two states of one: -O2 has three times as many.
_SMALL = ("-Os", "-fno-ipa-cp", "-fno-ipa-sra")
_OPTIONS = [*_SMALL, "-U_FORTIFY_SOURCE", '-DFLEXCOMP_SYNC="explorer.h"', f"-I{Path(__file__).parent}"]
_CHANGE = "    while (!value_.compare_exchange_weak(seen, change(seen), std::memory_order_seq_cst)) continue;\n"
_ASLEEP = "sleepers_.load(std::memory_order_seq_cst) != 0"


def test_every_order_of_steps_is_right(breakable):
    """While no rule is broken. The same program finds the same every time."""
    said = made("explored", [breakable], lambda path: path.write_text(native.run(breakable).stdout)).read_text()
    print(said)
    assert int(said.splitlines()[-1].split()[0]) > 1_000_000  # states


# Rules by name: their file, how they are broken, and what the explorer finds then, which begins with the scenario.
RULES = {
    "an inference is skipped": (
        "storage/loader.cc", "    started_.WaitOther(inference - 1);",
        "    if (BROKEN) inference = started_.WaitOther(inference - 1);\n    else started_.WaitOther(inference - 1);",
        "all read ahead: nobody can go on",
    ),
    "an error is taken for an interruption": (
        "storage/loader.cc", "if (interrupted() || failure.error == 0) return",
        "if (interrupted() || (BROKEN ? failure.error != 5 : failure.error == 0)) return",
        "faults, all ahead: an inference began anew for no reason",
    ),
    "reading ahead does not wait": (
        "storage/loader.cc", "  if (operation.after == Operation::kAnytime) return true;",
        "  if (operation.after == Operation::kAnytime || (BROKEN && operation.ahead())) return true;",
        "all read ahead: ",
    ),
    "a read begins behind an interruption": (
        "storage/loader.cc", "given_up = abort_ || interrupted_;\n  const Operation& read",
        "given_up = !BROKEN && (abort_ || interrupted_);\n  const Operation& read",
        "switches, all ahead and pinned: a read begins into memory that was given back",
    ),
    "what is to be prepared is read over": (
        "storage/loader.cc", "  while (at < read.nbytes && IsInUse(read))\n",
        "  while (!BROKEN && at < read.nbytes && IsInUse(read))\n",
        "prepared: ",
    ),
    "a preparation begins behind an interruption": (
        "storage/loader.cc",
        ("given_up = interrupted_;\n  int error", "given_up = interrupted() ||"),
        ("given_up = !BROKEN && interrupted_;\n  int error", "given_up = (!BROKEN && interrupted()) ||"),
        "switches, prepared and pinned: memory was given back in which something is prepared",
    ),
    "what does not stay is read early": (
        "storage/loader.cc", "operations[early_].after != Operation::kAnytime)",
        "(BROKEN ? operations[early_].kind != Operation::Kind::kRead : operations[early_].after != Operation::kAnytime))",
        "ring: ",
    ),
    "what does not stay is not read": (
        "storage/loader.cc", "begun = index < early_ && read.after == Operation::kAnytime;",
        "begun = index < early_ && (BROKEN || read.after == Operation::kAnytime);",
        "kept, and others: a step begins without its weights",
    ),
    "what stays is never read": (
        "storage/loader.cc", "begun = index < early_ &&", "begun = (BROKEN || index < early_) &&",
        "all read ahead: a step begins without its weights",
    ),
    "what is read apart is not copied to where it is prepared": (
        "storage/loader.cc", "    std::memcpy(", "    if (!BROKEN) std::memcpy(",
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
        "storage/loader.cc", "  if (Drain()) Fail(record, failure);", "  if (BROKEN || Drain()) Fail(record, failure);",
        "refused, ahead beside others: an inference began anew for no reason",
    ),
    "what a first inference takes is prepared too early": (
        "storage/loader.cc", "count = record.at.steps + ", "count = record.at.steps - (BROKEN && operation.ahead()) + ",
        "cold, all pinned: ",
    ),
    "what was prepared out of the arena is prepared again": (
        "storage/loader.cc", "there += ended.of().to >= working_", "there += !BROKEN && ended.of().to >= working_",
        "lane, cold, all pinned: ",
    ),
    "preparing out of the arena is given up for who works elsewhere": (
        "storage/loader.cc", "(preparing_->to < working_ && abort_", "((BROKEN || preparing_->to < working_) && abort_",
        "lane, cold, all pinned: what was read is given up for nothing",
    ),
    "nothing is prepared behind a first inference": (
        "storage/loader.cc", "first = at.tape == &tapes_.first &&", "first = !BROKEN && at.tape == &tapes_.first &&",
        "cold, all pinned: ",
    ),
    "filling does not wait for what runs ahead": (
        "storage/loader.cc", "  if (at_.tape != &tapes_.first) GiveUp();",
        "  if (!BROKEN && at_.tape != &tapes_.first) GiveUp();",
        "filled behind, ahead: ",
    ),
    "what was given up counts": (
        "storage/loader.cc", "at_ = {&tape, loaded_.count(),", "at_ = {&tape, BROKEN ? at_.operations : loaded_.count(),",
        "lane, all ahead: ",
    ),
    "a preparation that did not end counts": (
        "storage/loader.cc", "if (lost_ || ", "if ((lost_ && !BROKEN) || ",
        "faults, filled behind: a part is prepared that is not to be",
    ),
    "a cancelled inference takes with it what stays": (
        "storage/loader.cc", "spoils = tape.steps.empty() ||", "spoils = BROKEN || tape.steps.empty() ||",
        "cancelled, all pinned: what stays is given up for nothing",
    ),
    "a cancelled inference leaves what was not read": (
        "storage/loader.cc", "operation.to < working_; };", "operation.to < working_ || BROKEN; };",
        "cancelled, cold: a part is prepared that is not to be",
    ),
    "a cancelled inference leaves reads in flight": (
        "storage/loader.cc", "  finished_.WaitEqual(started_count_);", "  if (!BROKEN) finished_.WaitEqual(started_count_);",
        "cancelled, two ahead: ",
    ),
    "nobody gives a cancelled inference up": (
        "storage/loader.h", "if (gives_up_) Settle();", "if (gives_up_ && !BROKEN) Settle();",
        "cancelled, two ahead: ",
    ),
    "a beginning forgets what interrupted it": (
        "storage/loader.cc", "Start() noexcept {\n", "Start() noexcept {\n  if (BROKEN) interrupted_ = false;\n",
        "cancelled, filled again: a cancel is lost",
    ),
    "two inferences have one record": (
        "storage/loader.h", "return records_[inference % 2];", "return records_[inference % (BROKEN ? 1 : 2)];",
        "all read ahead: ",
    ),
    "a sleeper is missed": (
        "base/counter.h", f"{_CHANGE}    WakeUp();\n",
        f"    const bool asleep = {_ASLEEP};\n{_CHANGE}    if (BROKEN ? asleep : {_ASLEEP}) value_.notify_all();\n",
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
    return native.compile(folder, "loader_protocol.cc", native.LOADER, _OPTIONS, sources=sources)


@pytest.mark.parametrize("name", RULES)
def test_what_a_missing_rule_breaks_is_found(breakable, name):
    """The explorer is as good as what it finds."""
    *_, found = RULES[name]
    done = native.run(breakable, found.partition(": ")[0], [*RULES].index(name) + 1, status=1)
    assert found in done.stdout and "after" in done.stdout

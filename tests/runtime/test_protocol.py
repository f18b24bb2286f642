"""The protocol between the loader and those it reads for, explored: every order in which their steps may follow each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import native
import pytest

_OPTIONS = ["-O2", "-U_FORTIFY_SOURCE", '-DFLEXCOMP_SYNC="explorer.h"', f"-I{Path(__file__).parent}"]
_STORE = "    value_.store(value, std::memory_order_seq_cst);\n"
_ASLEEP = "sleepers_.load(std::memory_order_seq_cst) != 0"


def test_every_order_of_steps_is_right(tmp_path):
    done = native.run(native.compile(tmp_path, "loader_protocol.cc", native.LOADER, _OPTIONS))
    print(done.stdout)
    assert int(done.stdout.splitlines()[-1].split()[0]) > 1_000_000  # states


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[str, Path]:
    """What the sources become as they are: to most variants only one of them is another."""
    return native.objects(tmp_path_factory.mktemp("objects"), "loader_protocol.cc", native.LOADER, _OPTIONS)


@pytest.mark.parametrize(
    ("file", "rule", "without", "found"),
    [
        pytest.param(
            "storage/loader.cc", "    started_.WaitOther(inference - 1);", "    inference = started_.WaitOther(inference - 1);",
            "all read ahead: a step begins without its weights", id="an inference is skipped",
        ),
        pytest.param(
            "storage/loader.cc", "if (interrupted() || failure.error == 0) return",
            "if (interrupted() || failure.error != 5) return",
            "faults, all ahead: an inference began anew for no reason", id="an error is taken for an interruption",
        ),
        pytest.param(
            "storage/loader.cc", "if (!AwaitComputed(turn, after, j, next) || !BeginLoad", "if (!BeginLoad",
            "all read ahead: ", id="reading ahead does not wait",
        ),
        pytest.param(
            "storage/loader.cc", "    if (interrupted_) {\n", "    if (false) {\n",
            "switches, all ahead and pinned: a read begins into memory that was given back",
            id="a read begins behind an interruption",
        ),
        pytest.param(
            "storage/loader.cc", "  while (!there && !ReadsApart(load) && Shares(load))\n    if (!EndRead()) return false;\n", "",
            "prepared: ", id="what is to be prepared is read over",
        ),
        pytest.param(
            "storage/loader_prepare.cc",
            ("  if (!interrupted_) {", "given_up = interrupted() ||"), ("  if (true) {", "given_up ="),
            "switches, prepared and pinned: memory was given back in which something is prepared",
            id="a preparation begins behind an interruption",
        ),
        pytest.param(
            "storage/loader.h", "return load.kept || (load.pinned", "return true || (load.pinned",
            "all read ahead: ", id="what does not stay is read early",
        ),
        pytest.param(
            "storage/loader.cc", "IsReadOnce(load) && (resident_ || j < early_load_)", "resident_",
            "all read ahead: ", id="what does not stay is not read",
        ),
        pytest.param(
            "storage/loader.cc", "IsReadOnce(load) && (resident_ || j < early_load_)", "IsReadOnce(load)",
            "all read ahead: a step begins without its weights", id="what stays is never read",
        ),
        pytest.param(
            "storage/loader_prepare.cc", "    if (stored != load.target) std::memcpy", "    if (false) std::memcpy",
            "apart: a part is prepared that is not to be", id="what is read apart is not copied to where it is prepared",
        ),
        pytest.param(
            "base/shared_work.h", "|| !wanted()) return", "|| (wanted(), false)) return",
            "prepared: an inference prepares what it does not wait for", id="who waits for nothing helps",
        ),
        pytest.param(
            "base/shared_work.h", "++number_ << 32 | parts", "parts",
            "prepared: ", id="two pieces of work look the same",
        ),
        pytest.param(
            "base/shared_work.h", "    done_.WaitEqual(parts_);", "    //",
            "prepared: ", id="work ends before its last part",
        ),
        pytest.param(
            "storage/loader.cc", "  if (Drain()) Fail(turn, failure);", "  Fail(turn, failure);",
            "refused, ahead beside others: nobody can go on", id="a refusal drops reads that somebody waits for",
        ),
        pytest.param(
            "storage/loader.cc", "loads_[j].cold >= 0 ? loads_[j].cold_after : loads_[j].after", "loads_[j].after",
            "cold, all pinned: ", id="what a first inference takes is prepared too early",
        ),
        pytest.param(
            "storage/loader_prepare.cc", "if (to_the_end_ && error == 0) warm_ = read.load + 1;", "",
            "lane, cold, all pinned: ", id="what was prepared out of the arena is prepared again",
        ),
        pytest.param(
            "storage/loader_prepare.cc", "(!to_the_end_ && abort_.load(std::memory_order_relaxed))",
            "abort_.load(std::memory_order_relaxed)",
            "lane, cold, all pinned: what was read is given up for nothing",
            id="preparing out of the arena is given up for who works elsewhere",
        ),
        pytest.param(
            "storage/loader.cc", "stage_ = StartsCold() && !turn().filling ? Stage::kCold", "stage_ = false ? Stage::kCold",
            "cold, all pinned: ", id="nothing is prepared behind a first inference",
        ),
        pytest.param(
            "storage/loader.cc", "  if (turn.filling) {\n    if (!Drain()) return;\n", "  if (turn.filling) {\n",
            "filled behind, cold: ", id="filling behind a first inference ends before its last load",
        ),
        pytest.param("storage/loader.h", "kTurns = 4", "kTurns = 2", "all read ahead: ", id="turns are used again too soon"),
        pytest.param(
            "base/counter.h", f"{_STORE}    WakeUp();\n",
            f"    const bool asleep = {_ASLEEP};\n{_STORE}    if (asleep) value_.notify_all();\n",
            "all read ahead: nobody can go on", id="a sleeper is missed",
        ),
    ],
)  # fmt: skip
def test_what_a_missing_rule_breaks_is_found(tmp_path, objects, file, rule, without, found):
    """The explorer is as good as what it finds; `found` begins with the scenario."""
    sources = tmp_path / "src"
    shutil.copytree(native.SRC, sources)
    text = (sources / file).read_text()
    for old, new in [(rule, without)] if isinstance(rule, str) else zip(rule, without, strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (sources / file).write_text(text)
    same = {name: made for name, made in objects.items() if name != file} if file in objects else {}
    program = native.compile(tmp_path, "loader_protocol.cc", native.LOADER, _OPTIONS, sources=sources, made=same)
    done = native.run(program, found.partition(": ")[0], status=1)
    assert found in done.stdout and "after" in done.stdout

"""Tokens by the runner: those of Python's Generator, in any budget."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

import flexcomp
from flexcomp import Generator, runtime_ext
from tests.exporters.genai import VOCABULARY
from tests.generation.decoders import FORM

PROMPT = np.random.default_rng(4).integers(0, VOCABULARY, 13).tolist()


def written(tokens):
    return ",".join(map(str, tokens))


def run(library, *options, code=0):
    command = [runtime_ext.runner(), library, "--threads", 1, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def generated(library, prompt, *options):
    """The tokens and the report."""
    line, report = run(library, "--generate", written(prompt), *options).stdout.splitlines()
    return list(map(int, line.split(","))), json.loads(report)


@pytest.fixture(scope="module")
def wanted(decoder_library):
    with flexcomp.load(decoder_library, "min", threads=1) as session:
        return list(Generator(session, speculate=False).reply(PROMPT, 12))


@pytest.mark.parametrize("budget", ["min", "all"])
def test_tokens_are_those_of_python(decoder_library, wanted, budget):
    tokens, report = generated(decoder_library, PROMPT, "--tokens", 12, "--budget", budget)
    assert tokens == wanted
    assert (report["prompt_tokens"], report["tokens"], report["finish"]) == (len(PROMPT), 12, "length")
    assert report["inferences"] == 2 + 11  # the prompt in a chunk of 8 and one of 8 that is not full
    assert report["tokens_per_s"] > 0 and report["first_token_ms"] > 0
    assert report["arena_bytes"] <= report["budget_bytes"] and report["peak_rss_bytes"] >= report["idle_rss_bytes"]
    with flexcomp.load(decoder_library, budget, threads=1) as session:
        list(Generator(session, speculate=False).reply(PROMPT, 12))
        stats = session.stats()
        # What is loaded ahead, for an inference that does not come or has another shape, depends on time.
        assert report["bytes_read"] == pytest.approx(stats["total_bytes_read"], rel=0.15)
        plan = {name: stats[name] for name in ("rung", "budget_bytes", "arena_bytes")}
        assert {name: report[name] for name in plan} == plan and stats["shape"], "of the shape of a token"


def test_it_ends_before_a_token_of_stop(decoder_library, wanted):
    end = next(at for at, token in enumerate(wanted) if at and token not in wanted[:at])
    tokens, report = generated(decoder_library, PROMPT, "--stop-tokens", f"{VOCABULARY},{wanted[end]}", "--budget", "all")
    assert tokens == wanted[:end] and report["finish"] == "stop"
    (line,) = run(decoder_library, "--generate", written(PROMPT), "--stop-tokens", wanted[0]).stdout.splitlines()
    assert json.loads(line)["tokens"] == 0 and json.loads(line)["tokens_per_s"] is None


def test_suppressed_tokens_do_not_come(decoder_library, wanted):
    options = {"never": [wanted[0], wanted[3], VOCABULARY - 1], "never_first": [wanted[1]]}
    with flexcomp.load(decoder_library, "all", threads=1) as session:
        following = [list(Generator(session).reply(PROMPT, 12, **given)) for given in (options, {"never_first": wanted[:1]})]
    given = ["--suppress-tokens", f"{VOCABULARY},{written(options['never'])}", "--begin-suppress-tokens", wanted[1]]
    for tokens, more in zip(following, (given, ["--begin-suppress-tokens", wanted[0]]), strict=True):
        assert tokens != wanted and generated(decoder_library, PROMPT, "--tokens", 12, *more)[0] == tokens
    done = run(decoder_library, "--generate", "1", "--suppress-tokens", written(range(VOCABULARY)), code=4)
    assert "leave no token that may follow" in done.stderr


def test_it_ends_where_the_caches_are_full(decoder_library):
    prompt = np.resize(PROMPT, FORM.capacity - 2).tolist()
    tokens, report = generated(decoder_library, prompt, "--budget", "all", "--start", "warm")
    assert len(tokens) == 3 and report["finish"] == "capacity"
    with flexcomp.load(decoder_library, "all", threads=1) as session:
        assert tokens == list(Generator(session).reply(prompt))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--generate", "1,,2"), 2, "--generate takes tokens such as 1,2,3, not \"1,,2\""),
        (("--generate", ""), 2, "--generate takes tokens"),
        (("--generate", "1,a"), 2, "--generate takes a number, not \"a\""),
        (("--generate", f"1,{VOCABULARY}"), 2, f"tokens are numbers from 0 to {VOCABULARY - 1}, not {VOCABULARY}"),
        (("--generate", written([0] * (FORM.capacity + 1))), 2, f"more than the caches have places for: {FORM.capacity}"),
        (("--generate", "1", "--tokens", "0"), 2, "--tokens takes at least 1"),
        (("--tokens", "3"), 2, "--suppress-tokens and --begin-suppress-tokens need --generate"),
        (("--suppress-tokens", "3"), 2, "need --generate"),
        (("--generate", "1", "--repeat", "2"), 2, "have no meaning: leave them out"),
    ],
)  # fmt: skip
def test_what_it_does_not_take(decoder_library, options, code, message):
    done = run(decoder_library, *options, code=code)
    assert message in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_a_library_that_is_no_decoder(tiny):
    done = run(tiny.library, "--generate", "1", code=4)
    assert 'it is not known what the decoder\'s input "x" is: build a decoder with inputs named' in done.stderr


def test_an_error_ends_the_line_of_tokens(decoder_library, tmp_path):
    """Weights that become shorter while it runs."""
    for file in decoder_library.parent.glob("decoder.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    command = [runtime_ext.runner(), tmp_path / "decoder.so", "--generate", "1", "--budget", "min", "--read-bandwidth", "500000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        first = running.stdout.read(1)
        with open(tmp_path / "decoder.weights", "r+b") as file:
            file.truncate(4096)
        rest, error = running.communicate()
    assert running.returncode == 4 and error.startswith("error: ")
    assert (first + rest).endswith("\n") and all(word.isdigit() for word in (first + rest).strip().split(","))

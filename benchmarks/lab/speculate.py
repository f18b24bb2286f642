"""Tokens per second with and without prompt lookup, on storage of a given rate, for text that repeats and text that does not.

    python -m benchmarks.lab.speculate chat/model.so [--budgets min 0.5 all] [--read-bandwidth 100e6] [--tokens 128]

The library is a decoder's, of `flexcomp build FOLDER`. Replies are forced along given tokens, so that passes and the bytes that
they read are those of such texts whatever the weights say: a circle of tokens, and tokens at random. `default` tries drafts where
the plan says that storage binds, `asked` in any case. Modes take turns in one session, and each figure is the median of the
rounds. The exit status is 1 if a budget's `default` is below 0.97 of `without`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.results import Results, Table, json_option
from flexcomp.generation import Generator, Grammar, Reply, Sampling

COLUMNS = {
    "budget": "", "text": "", "drafts": "", "tokens per second": ".2f", "of without": ".3f", "passes": "d", "tried": "d",
    "right": "d", "MB read per token": ".2f",
}  # fmt: skip
MODES = {"without": False, "default": None, "asked": True}
_PERIOD = 12  # tokens of the circle
_LEAST = 0.97  # of the speed without


class Forced:
    """A constraint of a reply: its tokens are given."""

    def __init__(self, tokens: list[int], vocabulary: int) -> None:
        self._tokens, self._place, self._vocabulary = tokens, 0, vocabulary

    def allowed(self) -> np.ndarray:
        """The one that comes next."""
        return np.arange(self._vocabulary) == self._tokens[self._place]

    def take(self, token: int) -> bool:
        """Whether all have come."""
        self._place += 1
        return self._place == len(self._tokens)


def said(session: flexcomp.Session, prompt: list[int], tokens: list[int], wanted: bool | None) -> tuple[Reply, float, int]:
    """A reply along tokens, its tokens per second after the first, and the bytes that it read."""
    generator = Generator(session, speculate=wanted)
    before = session.stats()["total_bytes_read"]
    forced = Forced(tokens, generator.decoder.vocabulary)
    reply = generator.reply(prompt, len(tokens), sampling=Sampling(grammar=Grammar("")), constraint=forced)
    if list(reply) != tokens:
        raise SystemExit("a reply has other tokens than it was forced to")
    rate = (len(tokens) - 1) / (reply.seconds - reply.first_token_s)
    return reply, rate, session.stats()["total_bytes_read"] - before


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["min", "0.5", "all"])
    parser.add_argument("--read-bandwidth", type=float, help="imitate storage of so many bytes per second")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    json_option(parser, "speculate")
    given = parser.parse_args(arguments)
    if given.tokens < 2 or given.rounds < 1:
        parser.error("a reply has 2 tokens or more, and there is a round")
    written, table, slow = Results.begin("benchmarks.lab.speculate"), Table(COLUMNS), False
    random = np.random.default_rng(1)
    for budget in given.budgets:
        with flexcomp.load(given.library, budget, given.threads, read_bandwidth=given.read_bandwidth) as session:
            vocabulary = Generator(session).decoder.vocabulary
            circle = random.integers(0, vocabulary, _PERIOD).tolist()
            texts = {
                "repeats": [circle[place % _PERIOD] for place in range(given.tokens)],
                "does not": random.integers(0, vocabulary, given.tokens).tolist(),
            }
            for text, tokens in texts.items():
                found = {mode: [] for mode in MODES}
                for _ in range(given.rounds):
                    for mode, wanted in MODES.items():
                        found[mode].append(said(session, circle, tokens, wanted))
                rates = {mode: statistics.median(rate for _, rate, _ in done) for mode, done in found.items()}
                slow |= rates["default"] < _LEAST * rates["without"]
                for mode, done in found.items():
                    reply, _, nbytes = done[-1]
                    tried = reply.speculation
                    share = rates[mode] / rates["without"]
                    read = nbytes / 1e6 / given.tokens
                    table.add(budget, text, mode, rates[mode], share, reply.passes, tried.proposed, tried.accepted, read)
    written.write(given.json, [table])
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

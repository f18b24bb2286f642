"""Draws of every option of a Sampling, and of all pairs, beside the distribution that they should have.

    python -m tests.generation.draws --draws 100000

Chi-square for each set of options, by a reference in plain Python; the bound is passed by chance once in a million sets. The exit
status is 1 for a set above it, or a token that should not come.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import combinations

import numpy as np
from scipy.special import chdtri  # scipy.stats takes a second to import

from flexcomp.generation.sampling import Sampler, Sampling

LOGITS = np.random.default_rng(3).normal(0, 0.6, 12).astype("float32")
EARLIER = [9, 9, 2, 5]
OPTIONS = {
    "temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.4, "presence_penalty": 0.9,
    "frequency_penalty": 0.6,
}  # fmt: skip
SETS = [{}, *({name: OPTIONS[name]} for name in OPTIONS), *({a: OPTIONS[a], b: OPTIONS[b]} for a, b in combinations(OPTIONS, 2))]
_CHANCE = 1e-6  # of a right sampler above the bound


def reference(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
) -> dict[int, float]:
    """Token by token, in plain Python."""
    scores = {}
    for token, score in enumerate(map(float, LOGITS)):
        if token in EARLIER:
            score = score / repetition_penalty if score > 0 else score * repetition_penalty
            score -= presence_penalty + EARLIER.count(token) * frequency_penalty
        scores[token] = score / temperature

    def parts(tokens):
        total = sum(math.exp(scores[token]) for token in tokens)
        return {token: math.exp(scores[token]) / total for token in tokens}

    left = sorted(scores, key=lambda token: -scores[token])
    if top_k:
        left = left[:top_k]
    before, kept = 0.0, []
    for token in left:
        if before < top_p:
            kept.append(token)
        before += parts(left)[token]
    left = [token for token in kept if parts(kept)[token] >= min_p * parts(kept)[kept[0]]]
    return parts(left)


def statistic(sampler: Sampler, wanted: dict[int, float], draws: int) -> tuple[float, float]:
    """Chi-square of so many draws, and the bound; infinite for a token that should not come."""
    counts = np.bincount([sampler.draw(LOGITS, EARLIER) for _ in range(draws)], minlength=len(LOGITS))
    expected = np.array([draws * wanted.get(token, 0.0) for token in range(len(LOGITS))])
    there = expected > 0
    if counts[~there].any():
        return math.inf, 0.0
    return float((((counts - expected) ** 2)[there] / expected[there]).sum()), float(chdtri(max(there.sum() - 1, 1), _CHANCE))


def main() -> int:
    """Print a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    wrong = 0
    for options in SETS:
        sampler = Sampler(Sampling(**{"temperature": 1.0, "seed": given.seed, **options}))
        found, bound = statistic(sampler, reference(**options), given.draws)
        wrong += found > bound
        print(f"{' '.join(f'{name}={value}' for name, value in options.items()) or 'plain':45} {found:8.2f} of {bound:.2f}")
    print(f"{len(SETS)} sets of {given.draws:,} draws, {wrong} above the bound")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The chunks in which a prompt is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping


def first_chunk(count: int, times: Mapping[int, float], gives_all: bool) -> int | None:
    """The size of the first of the inferences that take `count` tokens in the least time; None if no sizes do it.

    `times`: what an inference takes, by the number of tokens that it has places for, in any unit. Not all places need a token;
    but without `gives_all` an inference gives the logits of its last place alone, so the last one of the prompt is full. Large
    chunks come first: what follows the prompt is in the smallest shape.
    """
    least, first = [0.0], [0]  # for each number of tokens
    for left in range(1, count + 1):
        found, chosen = math.inf, 0
        for size, time in sorted(times.items(), reverse=True):
            if size <= left:
                after = least[left - size]
            elif gives_all:
                after = 0.0
            else:
                after = least[1] if left > 1 else math.inf
            if time + after < found:
                found, chosen = time + after, size
        least.append(found)
        first.append(chosen)
    return first[count] or None

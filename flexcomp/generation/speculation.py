"""Whether an inference takes proposed tokens along: where it takes hardly longer, and while they are right often enough.

Where reading weights binds, an inference in a shape for several tokens takes hardly longer than one in the shape for one. What
it takes more is paid by tokens that were right, and by 3 % of all: time is counted in predicted inferences for one token, and
bytes that a change of shape reads in those that such an inference reads. Drafts that the caller asked for are tried elsewhere,
too, until they have lost a few inferences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flexcomp.generation.decoder import Decoder
from flexcomp.generation.lookup import PromptLookup

_HARDLY = 0.5  # of an inference for one token: what one with drafts may take more
_LOST = 0.03  # of a reply's inferences without drafts: what drafts may lose in all
_SAVED = 1.0  # inferences saved that count: drafts that were right long ago do not pay for wrong ones
_TRIED = 8.0  # inferences that drafts may lose where they were asked for
_ENOUGH = 8  # tokens at once: a larger shape is rarely filled with right ones


class Speculation:
    """The drafts of one reply, by prompt lookup."""

    def __init__(self, decoder: Decoder, wanted: bool | None) -> None:
        """`wanted`: None for drafts where reading weights binds; True for trying them in any case, False for none."""
        self.proposed = self.accepted = 0
        self._decoder, self._wanted, self._lookup = decoder, wanted, PromptLookup()
        self._lost = -_TRIED if wanted else 0.0  # inferences, less what may be lost
        self._change = 1.0  # of shape: the inferences that it takes, as the last one did
        self._before, self._read, self._takes_more = 0, 0, 0.0  # size and bytes read before the next inference, and its time

    def next(self, sequence: Sequence[int], left: int, most: int) -> tuple[int, list[int]]:
        """For the next inference of a reply of `most` more tokens, of whose text `left` are not taken: the size of its shape, at
        least, and drafts.
        """
        self._before, self._read, self._takes_more = self._decoder.size, 0, 0.0
        if self._wanted is False or most < 2 or left != 1:
            return 1, []
        sizes = self._decoder.sizes_for_drafts()
        if not sizes:
            return 1, []
        drafts = self._lookup.propose(sequence, min(most, sizes[-1]) - 1)
        if self._before == 1 and not drafts:
            return 1, []
        allowed = {size: time for size, time in self._times(sizes).items() if self._pays(time, bool(drafts))}
        if not allowed:
            return 1, []
        size = next((size for size in allowed if size >= _ENOUGH), max(allowed))
        self._takes_more = allowed[size]
        return size, drafts[: size - 1]

    def _times(self, sizes: Sequence[int]) -> Mapping[int, float]:
        """What an inference of each size takes more than one for one token, where that is little, or drafts were asked for."""
        if not self._pays(0.0, has_drafts=True):
            return {}
        rungs = self._decoder.rungs()
        least = rungs[min(rungs)]
        if not self._wanted and (1 not in rungs or not least.streamed_bytes):
            return {}
        self._read = self._bytes_read()
        more = {size: max(rungs[size].predicted_ms / least.predicted_ms - 1, 0.0) for size in sizes}
        return {size: time for size, time in more.items() if time <= (math.inf if self._wanted else _HARDLY)}

    def _pays(self, time: float, has_drafts: bool) -> bool:
        """Whether there is enough for it. A shape is left once in any case, after the prompt, but entered for drafts alone."""
        if self._before != 1:
            return self._lost + time <= 0
        return has_drafts and self._lost + time + 2 * self._change <= 0

    def count(self, proposed: int, right: int) -> None:
        """Note an inference that gave a token, and how many drafts were right."""
        self.proposed += proposed
        self.accepted += right
        if self._wanted is False:
            return
        size = self._decoder.size
        if self._before not in (0, size):
            rungs = self._decoder.rungs()
            if self._read and 1 in rungs:
                more, usual = max(self._bytes_read() - self._read - rungs[size].streamed_bytes, 0), rungs[1].streamed_bytes
                self._change = more / usual if usual else _TRIED * bool(more)
            if self._before == 1:
                self._lost += 2 * self._change  # to leave it again, too
        self._lost += self._takes_more - right - _LOST * (1 + right)
        self._lost = max(self._lost, -max(_SAVED, _TRIED * bool(self._wanted)) - 2 * self._change)

    def _bytes_read(self) -> int:
        return self._decoder.session.stats()["total_bytes_read"]

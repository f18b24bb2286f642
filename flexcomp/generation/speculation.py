"""Whether an inference takes proposed tokens along: while they save more than they take, by measured times.

Proposals are looked up in the text, or made by a draft model. An inference in a shape for several tokens takes hardly longer
than one for a single token where reading weights binds. What proposals take more is paid by those that were right, and by 2 %
of all inferences; until it is paid nothing is looked up or decided, which takes long beside a tiny decoder's inference. The
unit is the measured time of an inference for one token; times that were not measured yet are the plan's. Without being asked,
an inference takes proposals along only in shapes that take hardly longer: by the plan where it says that storage binds, by
times measured in prompts otherwise. Those that the caller asked for may lose a few inferences first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from flexcomp.generation.decoder import Decoder
from flexcomp.runtime import RungInfo

_HARDLY = 0.5  # of an inference for one token: what one with drafts may take more
_LOST = 0.02  # of inferences without drafts: what drafts may lose in all
_SAVED = 1.0  # inferences saved that count: drafts that were right long ago do not pay for wrong ones
_TRIED = 8.0  # inferences that drafts may lose where they were asked for
_ENOUGH = 8  # tokens at once: a larger shape is rarely filled with right ones
_CHANGE = 1.0  # inferences that a change of shape takes, until it was measured
_RIGHT, _TESTED = 7.0, 10.0  # proposals, as if they had been tested before the first one
_ASKED = 16  # decisions after which a change of budget is noticed
_MEMORY = 0.95  # how much of what was tested before an inference counts after it


class Proposer(Protocol):
    """Proposes the next tokens of one reply."""

    @property
    def token_s(self) -> float | None:
        """Seconds that a proposed token takes; None if that is not known."""

    def read(self, context: Sequence[int]) -> None:
        """Prepare for a prompt, of which the decoder takes a part now."""

    def most(self, sequence: Sequence[int], context: Sequence[int], count: int) -> int:
        """How many tokens, of `count`, can be proposed after a text; the decoder takes the part `context` of it."""

    def propose(self, count: int) -> list[int]:
        """So many tokens after the text that `most` was asked about."""


class Account:
    """What the proposals of a generator's replies have won and lost."""

    def __init__(self, decoder: Decoder, wanted: bool | None) -> None:
        """`wanted`: None for proposals that hardly take time; True for trying them in any case, False for none."""
        self.decoder, self.wanted = decoder, wanted
        self._most = _TRIED if wanted else _SAVED  # inferences that may be ahead
        self.lost = -_TRIED if wanted else 0.0  # inferences, less what may be lost
        self.enough = -_CHANGE  # with so little lost another shape than that for one token may be entered, and left again
        self.is_entered = False  # whether drafts, and no prompt, brought the decoder into the shape that it is in
        self._right, self._tested = _RIGHT, _TESTED
        self._asked = 0
        self._rungs: Mapping[int, RungInfo] = {}

    @property
    def unit_s(self) -> float | None:
        """The time of an inference for one token."""
        return self.decoder.pace.seconds(self.decoder.least)

    def times(self, sizes: Sequence[int]) -> Mapping[int, float]:
        """What an inference of each size takes, in units, where that is little or drafts were asked for; {} if it is unknown."""
        rungs, pace = self._plans(), self.decoder.pace
        if (unit_s := self.unit_s) is None:
            return {}
        least = rungs[self.decoder.least]
        found = {}
        for size in sizes:
            if (seconds := pace.seconds(size)) is not None:
                found[size] = seconds / unit_s
            elif self.wanted or least.streamed_bytes:
                found[size] = max(rungs[size].predicted_ms / least.predicted_ms, 1.0)
        return {size: time for size, time in found.items() if time <= (math.inf if self.wanted else 1 + _HARDLY)}

    def _plans(self) -> Mapping[int, RungInfo]:
        """The plans in use, asked for now and then: that takes as long as a small decoder's inference."""
        if self._asked % _ASKED == 0:
            self._rungs = self.decoder.rungs()
            self.decoder.pace.follow(tuple(rung.predicted_ms for rung in self._rungs.values()))
            self.enough = -self.changes(self.decoder.least, 1.0)
        self._asked += 1
        return self._rungs

    def changes(self, size: int, time: float) -> float:
        """What a change to the shape for `size` tokens takes more than one that takes `time` without a change, in units.

        One that was not measured yet takes what the change back does.
        """
        for one, without in ((size, time), (self.decoder.least, 1.0)):
            if (seconds := self.decoder.pace.seconds(one, changed=True)) is not None:
                return max(self.units(seconds) - without, 0.0)
        return _CHANGE

    def expected(self, count: int) -> float:
        """How many tokens an inference with `count` drafts gives. Source: Leviathan et al. (2023), equation 1."""
        part = min(self._right / self._tested, 0.999)
        return (1 - part ** (count + 1)) / (1 - part)

    def units(self, seconds: float | None) -> float:
        """The same time in inferences for one token; 0 for an unknown one."""
        unit_s = self.unit_s
        return seconds / unit_s if seconds and unit_s else 0.0

    def note(self, before: int, spent_s: float, proposed: int, right: int) -> None:
        """After one in the shape for `before` tokens, an inference gave 1 + `right`; the proposals took so long."""
        least, size = self.decoder.least, self.decoder.size
        # Times of inferences are medians, and that of a decision is bounded: other programs may have run meanwhile.
        lost = min(self.units(spent_s), _TRIED) if spent_s else 0.0
        if before == size == least and not proposed:  # as most are
            self.is_entered = False
            self.lost = max(self.lost + lost - _LOST, 2 * self.enough - self._most)
            return
        took = self.units(self.decoder.pace.last_s)
        if before != least and size == least:
            self.enough = -self.changes(least, 1.0)
            if not self.is_entered:
                took = 1.0  # as without drafts: the prompt's shape is left in any case
        self.is_entered = size != least and (self.is_entered or before == least)
        if proposed:
            self._right = _MEMORY * self._right + right
            self._tested = _MEMORY * self._tested + min(right + 1, proposed)
        if took:
            self.lost = max(self.lost + took + lost - (1 + right) * (1 + _LOST), 2 * self.enough - self._most)


class Speculation:
    """The drafts of one reply."""

    def __init__(self, account: Account, proposer: Proposer) -> None:
        self.proposed = self.accepted = 0
        self._account, self._proposer = account, proposer
        self._before, self._spent_s = 0, 0.0  # the size of the inference before the next one; what deciding on that took

    def next(self, sequence: Sequence[int], context: Sequence[int], left: int, most: int) -> tuple[int, list[int]]:
        """For the next inference of a reply of `most` more tokens, of whose `context` `left` are not taken: the size of its
        shape, at least, and drafts.
        """
        account = self._account
        self._before, self._spent_s = (account.decoder.size if left == 1 else 0), 0.0
        if account.wanted is False or most < 2:
            return 1, []
        if account.lost > (account.enough if self._before == account.decoder.least else 0.0):
            return 1, []
        if left != 1:
            self._proposer.read(context)
            return 1, []
        began = time.perf_counter()
        found = self._decided(sequence, context, most)
        self._spent_s = time.perf_counter() - began
        return found

    def _decided(self, sequence: Sequence[int], context: Sequence[int], most: int) -> tuple[int, list[int]]:
        """As `next`, of a context of which one token is not taken."""
        account, decoder = self._account, self._account.decoder
        sizes = decoder.sizes_for_drafts()
        sizes = [size for size in sizes if size <= next((one for one in sizes if one >= _ENOUGH), _ENOUGH)]
        if not (times := account.times(sizes)):
            return 1, []
        count = self._proposer.most(sequence, context, min(most, max(times)) - 1)
        if not count and self._before == decoder.least:
            return 1, []
        size, chosen = self._choice(times, count)
        return size, self._proposer.propose(chosen) if chosen else []

    def _choice(self, times: Mapping[int, float], count: int) -> tuple[int, int]:
        """The shape that gives most tokens in its time, and for how many drafts, of those that there is enough for.

        A shape is left once in any case, after the prompt, but entered for drafts alone.
        """
        account, least, best, found = self._account, self._account.decoder.least, 0.0, (1, 0)
        leaving = account.changes(least, 1.0) if self._before == least else 0.0
        for size, took in times.items():
            more = leaving + (account.changes(size, took) if size != self._before else 0.0)
            for drafts in range(min(count, 1), min(count, size - 1) + 1):
                whole = took + drafts * account.units(self._proposer.token_s)
                rate = account.expected(drafts) / whole
                if (drafts or size == self._before) and account.lost + whole - 1 + more <= 0 and rate > best:
                    best, found = rate, (size, drafts)
        return found

    def count(self, proposed: int, right: int) -> None:
        """Note an inference that gave a token, and how many drafts were right."""
        account = self._account
        if account.wanted is not False:
            self.proposed += proposed
            self.accepted += right
            if self._before:
                account.note(self._before, self._spent_s, proposed, right)

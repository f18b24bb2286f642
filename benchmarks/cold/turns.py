"""All contenders of a network start cold in turns, round after round, and every start is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict

import numpy as np

from benchmarks.cold.artifacts import Built, Place, built
from benchmarks.cold.contenders import Ours, Peer, computing_ms, start_ours, start_peer
from benchmarks.cold.summary import KEY, Record, Records
from benchmarks.peers import ENGINES
from benchmarks.peers.machine import observed
from benchmarks.peers.measure import EngineFailure, Waiting, install, largest_error
from flexcomp.errors import FlexcompError

Contender = Ours | Peer
Say = Callable[[str], None]
REFERENCE = Peer("onnxruntime")
_LEAST_MEMORY, _MEMORY = 512 << 20, 4  # bytes that are backed before a start, and times the weights


class Turns:
    """Contenders on one network with so many threads.

    `seconds`: how long a process goes on after its third inference.
    """

    def __init__(self, place: Place, threads: int, contenders: Sequence[Contender], records: Records, seconds: float) -> None:
        self.place, self.threads, self.records, self.seconds = place, threads, records, seconds
        self.workplace = place.workplace(threads)
        self.contenders = list(contenders)
        self.built: dict[Ours, Built] = {}
        self._unable: dict[Contender, str] = {}
        self._reference: list[np.ndarray] = []

    def prepare(self, say: Say) -> None:
        """Convert and build missing files; an engine that fails takes no part, and is recorded with the reason."""
        for contender in dict.fromkeys([REFERENCE, *self.contenders]):
            try:
                if isinstance(contender, Peer):
                    say(f"{self.place.name}, {self.threads} threads: converting for {contender.name}")
                    install(ENGINES[contender.engine])
                    self.workplace.convert(contender.engine, contender.cached)
                else:
                    say(f"{self.place.name}, {self.threads} threads: building {contender.name}")
                    self.built[contender] = built(self.workplace.model, self.threads, contender.weights, self.place.folder)
            except (EngineFailure, FlexcompError) as error:
                if contender == REFERENCE:
                    raise
                self._unable[contender] = str(error)

    def measure(self, rounds: int, say: Say) -> None:
        """Take the rounds that are not recorded yet."""
        for contender, reason in self._unable.items():
            self._record(contender, 0, {"failure": reason})
        for number in range(rounds):
            turn = self._turn(number)
            if not turn:
                continue
            say(f"{self.place.name}, {self.threads} threads: round {number + 1} of {rounds}")
            expected = self._expected()
            with ExitStack() as stack, observed() as conditions:
                waiting = {peer: self._waiting(stack, peer) for peer in turn if isinstance(peer, Peer)}
                for process in waiting.values():  # nobody begins while others are imported
                    process.until_ready()
                taken = {contender: self._start(contender, waiting.get(contender), expected) for contender in turn}
            for contender, figures in taken.items():
                self._record(contender, number, figures | asdict(conditions))

    def _turn(self, number: int) -> list[Contender]:
        """Contenders that have yet to start in a round. After the first, engines take the faster way, with or without cache."""
        first = {contender: self.records.get(self._key(contender, 0)) or {} for contender in self.contenders}
        able = [one for one in self.contenders if one not in self._unable and "failure" not in first[one]]
        if number:
            fastest: dict[str, Peer] = {}
            for peer in sorted((one for one in able if isinstance(one, Peer)), key=lambda one: first[one]["first_ms"]):
                fastest.setdefault(peer.engine, peer)
            able = [contender for contender in able if isinstance(contender, Ours) or contender in fastest.values()]
        begin = number % max(len(able), 1)  # who goes first has the quietest caches, or the slowest clock
        return [contender for contender in able[begin:] + able[:begin] if self._key(contender, number) not in self.records]

    def _waiting(self, stack: ExitStack, peer: Peer) -> Waiting:
        return stack.enter_context(Waiting(self.workplace, peer.engine, self.seconds, peer.cached))

    def _start(self, contender: Contender, waiting: Waiting | None, expected: list[np.ndarray]) -> Record:
        memory = max(_LEAST_MEMORY, _MEMORY * self.place.facts.raw_nbytes)
        try:
            if isinstance(contender, Peer):
                began = start_peer(waiting, memory)
            else:
                files, outputs = self.place.inputs, self.place.facts.outputs
                began = start_ours(contender, self.built[contender], files, outputs, self.threads, self.seconds, memory)
            ours = next(iter(self.built), None)  # the first that could be built
            fastest = {"computing_ms": computing_ms(self.built[ours], self.threads, self.seconds)} if contender == ours else {}
        except (EngineFailure, FlexcompError) as error:
            return {"failure": str(error)}
        error = largest_error(began.outputs, expected)
        return began.figures() | fastest | {"error": error, "right": error <= contender.tolerance}

    def _expected(self) -> list[np.ndarray]:
        """The answer of the reference, in this run."""
        if not self._reference:
            with ExitStack() as stack:
                self._reference = self._waiting(stack, REFERENCE).go().outputs
        return self._reference

    def _record(self, contender: Contender, number: int, figures: Record) -> None:
        key = dict(zip(KEY, self._key(contender, number), strict=True))
        self.records.add(key | self._facts(contender, number) | figures)

    def _facts(self, contender: Contender, number: int) -> Record:
        """Of an artifact, with the first start of each."""
        made = self.built.get(contender)
        if number or made is None:
            return {}
        network = self.place.facts
        known = {"parameters": network.parameters, "raw_nbytes": network.raw_nbytes}
        return known | {key: getattr(made, key) for key in ("weights_nbytes", "library_nbytes", "build_s", "plan_s")}

    def _key(self, contender: Contender, number: int) -> tuple:
        return self.place.name, self.threads, contender.name, number

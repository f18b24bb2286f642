"""A decoder's library as what it is for: tokens in, logits of the next token out, however many tokens its shapes take at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from flexcomp.errors import InputError
from flexcomp.generation.caches import Owner, SavedCaches, common
from flexcomp.generation.chunks import first_chunk
from flexcomp.generation.names import ENCODED, IDS, LOGITS, MASKS, PLACES, STARTS
from flexcomp.generation.narrow_rows import as_stored, stored_shape
from flexcomp.generation.pace import Pace
from flexcomp.generation.pair import Pair, Source
from flexcomp.runtime import RungInfo, Session, ShapeInfo, TensorInfo

_LEAST_SLIDING = 4  # places: half of them are the first token and the last one
_WAY_OUT = "build a decoder with inputs named as transformers names them, and with state= for its caches"


class Decoder:
    """The caches of a session, and the tokens whose keys and values they hold. Nobody else may use the session."""

    def __init__(self, session: Session | Pair) -> None:
        """Raises InputError for a library that is no decoder of one sequence."""
        self.pair = session if isinstance(session, Pair) else None
        self._session = session = self.pair.session if self.pair is not None else session
        self.tokens: list[int] = []
        self.size = 0  # of the last inference: how many tokens its shape takes
        self.pace = Pace()
        names = [port.name for port in session.inputs]
        found = [name for name in names if name in IDS]
        if len(found) != 1:
            listed = ", ".join(names)
            raise InputError(f"one input must be the tokens ({', '.join(IDS)}), and the inputs are {listed}: {_WAY_OUT}")
        self._ids = found[0]
        encoded = [name for name in names if name.startswith(ENCODED)]
        if strange := [name for name in names if name not in (*IDS, *MASKS, *PLACES, *STARTS, *encoded)]:
            raise InputError(f"it is not known what the decoder's input {strange[0]!r} is: {_WAY_OUT}")
        # What an encoder made for a reply, of which caches are no text's alone, and are not saved.
        self.encoded = frozenset([*encoded, *session.staying])
        self.capacity = self._capacity()
        self.saved = SavedCaches(session, is_kept=not self.encoded)
        self._from_encoder: Mapping[str, np.ndarray] = {}
        self._owner: Owner | None = None  # the reply that took the tokens
        outputs = [port.name for port in session.outputs]
        if len(outputs) > 1 and LOGITS not in outputs:
            raise InputError(f"none of the outputs {', '.join(outputs)} is named {LOGITS!r}: {_WAY_OUT}")
        self._logits = LOGITS if LOGITS in outputs else outputs[0]
        self._inputs = {self._taken(shape): _Inputs(shape.inputs, self._ids, self.encoded) for shape in session.shapes}
        self._sizes = sorted(self._inputs)  # numbers of tokens that are taken at once
        self.least = self._sizes[0]
        self.vocabulary = session.outputs[outputs.index(self._logits)].shape[-1]
        # With logits of all tokens, the last tokens of a chunk may be none.
        self._gives_all = all(self._given(shape) == self._taken(shape) for shape in session.shapes)

    @property
    def session(self) -> Session:
        """The session, whose state a pair's encoder may have ended meanwhile."""
        if self.pair is not None and self.pair.session is not self._session:
            self._session, self._owner, self.tokens = self.pair.session, None, []
        return self._session

    def _capacity(self) -> int:
        caches = [port for port in self.session.states if port.name not in self.encoded]
        if strange := [port.name for port in caches if len(port.shape) != 4]:
            raise InputError(f"the state {strange[0]!r} is no cache of keys or values, so prompts cannot go on from a part of it")
        extents = {port.shape[2] for port in caches}
        if not caches or len(extents) != 1:
            raise InputError(f"the library has {len(caches)} caches, with {sorted(extents)} places: {_WAY_OUT}")
        for port in self.session.inputs:
            if port.name in MASKS and port.shape[-1:] != (*extents,):
                places = f"{port.shape[-1]} places, and caches have {min(extents)}"
                raise InputError(f"the mask {port.name!r} has {places}: {_WAY_OUT}")
        return min(extents)

    @staticmethod
    def _port(ports: Sequence[TensorInfo], name: str) -> TensorInfo:
        return next(port for port in ports if port.name == name)

    def _taken(self, shape: ShapeInfo) -> int:
        """The number of tokens that a shape takes at once."""
        return self._port(shape.inputs, self._ids).shape[-1]

    def _given(self, shape: ShapeInfo) -> int:
        """The number of tokens that a shape gives logits for."""
        extents = self._port(shape.outputs, self._logits).shape
        return extents[-2] if len(extents) == 3 else 1

    def require_encoded(self, given: Mapping[str, np.ndarray]) -> None:
        """Raise InputError unless arrays of the right shapes are given for all that an encoder makes, and nothing else."""
        if set(given) != self.encoded:
            wanted, found = (", ".join(sorted(names)) or "nothing" for names in (self.encoded, given))
            raise InputError(f"encoded must be {wanted}, not {found}")
        for port in (*self.session.inputs, *self.session.states):
            if port.name in given and stored_shape(np.shape(given[port.name]), port) != port.shape:
                raise InputError(f"encoded: {port.name!r} is {port}, not of shape {np.shape(given[port.name])}")

    def require_source(self, source: Source | None) -> None:
        """Raise InputError unless this is what the encoder takes, if there is one."""
        if self.pair is not None and source is not None:
            self.pair.require_source(source)
        elif self.pair is not None:
            raise InputError("the decoder's text depends on another one: give its tokens, or features, as source")
        elif source is not None:
            raise InputError("source is for an encoder, and there is none: give a Pair of libraries in place of a session")

    def encode(self, source: Source) -> dict[str, np.ndarray]:
        """What the encoder makes of a text or of features, as `encoded` of a reply. Others' caches may be computed again."""
        made = self.pair.encode(source)
        return {name: array for name, array in made.items() if name in self.encoded}

    def turn_to(self, owner: Owner, context: Sequence[int], encoded: Mapping[str, np.ndarray] | None = None) -> None:
        """Have the caches hold as many of the first tokens of `context` as are known, but for the last one, whose logits are
        needed; and what an encoder made for the reply. Others' caches are saved.
        """
        session = self.session
        if owner is self._owner:
            return
        sequence = context[:-1]
        if self.encoded:
            self._owner, self.tokens, self._from_encoder = None, [], encoded or {}
            session.set_state({
                port.name: as_stored(self._from_encoder[port.name], port)
                for port in session.states
                if port.name in session.staying and port.name in self._from_encoder
            })  # fmt: skip
            self._owner = owner
            return
        here = common(self.tokens, sequence)
        entry, there = self.saved.find(sequence)
        if here < len(self.tokens) or there > here:
            self.saved.save(self.tokens, self._owner, wanted=entry if there > here else None)
        if entry is not None and there > here and self.saved.restore(entry, there):
            self.tokens = entry.tokens[:there]
        else:
            del self.tokens[here:]
        self._owner = owner

    def forget(self, owner: Owner, sequence: Sequence[int]) -> None:
        """Have the caches hold no more than `sequence` of a reply, if they are that reply's."""
        if owner is self._owner:
            del self.tokens[common(self.tokens, sequence) :]

    def require_room(self, count: int) -> None:
        """Raise InputError unless the caches have places for so many tokens."""
        if count > self.capacity:
            raise InputError(f"the prompt has {count} tokens, and the caches {self.capacity} places: shorten it, or slide")

    def require_sliding(self) -> None:
        """Raise InputError for caches of which no half is worth keeping."""
        if self.capacity < _LEAST_SLIDING:
            raise InputError(f"caches of {self.capacity} places do not slide: {_LEAST_SLIDING} are needed")

    def advance(self, sequence: Sequence[int], drafts: Sequence[int] = (), least: int = 1) -> np.ndarray | None:
        """Take tokens of `sequence` that are not taken yet, as many as a shape takes; logits [1 + drafts, vocabulary].

        One inference, in a shape for `least` tokens or more. None if some are left. The tokens taken before are the first of
        `sequence`. The first row follows the last token of `sequence`, and each other row a draft. Caches have drafts in places
        that the next inference writes, unless `accept` keeps them.
        """
        rest = [*sequence[len(self.tokens) :], *drafts]
        if drafts or least > 1:
            size = min(size for size in self.sizes_for_drafts() if size >= max(len(rest), least))
        else:
            size = self._chunk(len(rest))
        # A place without a token may be the last one only where logits of others are given, too.
        piece = rest[:size] if self._gives_all or size <= len(rest) else rest[:-1]
        began = time.perf_counter()
        given = self._inputs[size].of(piece, len(self.tokens), self._from_encoder)
        found = self.session.run(given)[self._logits].reshape(-1, self.vocabulary)
        self.pace.note(size, self.size, time.perf_counter() - began)
        self.size = size
        self.tokens += piece[: len(piece) - len(drafts)]
        if len(piece) < len(rest):
            return None
        return found[len(piece) - 1 - len(drafts) : len(piece)] if self._gives_all else found[-1:]

    def accept(self, drafts: Sequence[int]) -> None:
        """Keep what the last inference computed of its first drafts."""
        self.tokens += drafts

    @property
    def most(self) -> int:
        """The most tokens that are taken at once."""
        return self._sizes[-1]

    @property
    def gives_all(self) -> bool:
        """Whether there are logits of all tokens that are taken at once, and not of the last one alone."""
        return self._gives_all and self.most > 1

    def rungs(self) -> dict[int, RungInfo]:
        """The plan in use for each number of tokens that are taken at once."""
        return dict(zip(map(self._taken, self.session.shapes), self.session.rungs(), strict=True))

    def sizes_for_drafts(self) -> list[int]:
        """Numbers of tokens that can be taken at once, from now on, with logits of all; none if shapes give fewer logits."""
        return [size for size in self._sizes if size > 1 and len(self.tokens) + size <= self.capacity] if self._gives_all else []

    def _chunk(self, count: int) -> int:
        """How many tokens to take at once, of `count` that are left: by the plans in use, all of them in the least time."""
        fitting = [size for size in self._sizes if len(self.tokens) + size <= self.capacity]
        if fitting and count >= 2 * fitting[-1]:
            return fitting[-1]
        times = dict.fromkeys(fitting[:1], 1.0)
        if count > 1 < len(fitting):
            times = {size: rung.predicted_ms for size, rung in self.rungs().items() if size in fitting}
        if (size := first_chunk(count, times, self._gives_all)) is None:
            sizes = ", ".join(map(str, self._sizes))
            raise InputError(f"no shape of the library ({sizes} tokens at once) fits {count} tokens: build one for 1, too")
        return size


class _Inputs:
    """Of inferences of one shape: arrays that the next one has, too, for a session reads them in `run` alone."""

    def __init__(self, ports: Sequence[TensorInfo], ids: str, encoded: Collection[str]) -> None:
        """`ids` is the name of the tokens, and `encoded` are those of what an encoder makes."""
        own = {port.name: np.zeros(port.shape, port.array_dtype) for port in ports if port.name not in encoded}
        self._own, flat = own, {name: array.reshape(-1) for name, array in own.items()}
        self._ids, self._masks = flat.pop(ids), [flat.pop(name) for name in list(flat) if name in MASKS]
        self._places = [(one, np.arange(len(one))) for one in flat.values()]  # of all new tokens, or of the first
        self._encoded = [port for port in ports if port.name in encoded]

    def of(self, piece: Sequence[int], begin: int, encoded: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """For the tokens `piece`, the first of which comes to the place `begin`; places after the last are none's."""
        count, end = len(piece), begin + len(self._ids)
        self._ids[:count], self._ids[count:] = piece, 0
        for mask in self._masks:
            mask[:end], mask[end:] = 1, 0
        for places, steps in self._places:
            np.add(steps, begin, out=places, casting="unsafe")
        if not self._encoded:
            return self._own
        return self._own | {
            port.name: np.ascontiguousarray(encoded[port.name], port.array_dtype).reshape(port.shape) for port in self._encoded
        }

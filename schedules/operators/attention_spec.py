"""What an attention kernel computes: its operands, the operations on scores, and scores by position."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvm import ir, tirx

from ..tiles.byte_rows import ByteRows

KINDS = ("add", "where", "blend", "causal", "positions")
_BY_PLACE = ("causal", "positions")  # kinds without a tensor of their own


@dataclass(frozen=True)
class ScoreMask:
    """An operation on scores: by a tensor float32 [batch or 1, heads or 1, keys, queries or 1], transposed, or by their places.

    "add" adds the tensor, "where" takes scores where it is not 0, and "blend", of 0 and 1, multiplies and adds
    `fill` to hidden scores: an infinite score is NaN there, and not hidden. "causal" takes the scores of query i up to key
    i + keys - queries. "positions" adds all PositionScores.
    """

    kind: str  # one of KINDS
    shape: tuple[int, int, int, int] | None = None
    fill: float = 0.0  # the value of hidden scores

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"mask {self.kind!r} is none of {KINDS}")
        if (self.kind in _BY_PLACE) != (self.shape is None):
            raise ValueError(f"mask {self.kind!r} has {'no' if self.kind in _BY_PLACE else 'a'} tensor")

    def applied(self, score: ir.Expr, value: ir.Expr, zero: ir.Expr, fill: ir.Expr) -> ir.Expr:
        """The masked score, `value` being the tensor's element."""
        if self.kind in ("add", "positions"):
            return score + value
        if self.kind == "blend":
            return score * value + tirx.Select(value != zero, zero, fill)
        return tirx.Select(value != zero, score, fill)


@dataclass(frozen=True)
class Access:
    """[batch, heads, rows, depth] somewhere in a buffer; neighbours in depth are neighbours in memory.

    Keys and values may be float16, or int8 with a scale after each row (ByteRows.of_cache).
    """

    buffer: tuple[int, ...]  # shape of the buffer
    offset: int  # of the first element, in elements as are the strides
    batch: int
    head: int
    row: int
    dtype: str = "float32"  # or float16, int8

    @classmethod
    def dense(cls, batch: int, heads: int, rows: int, depth: int) -> Access:
        """A tensor of that shape, in that order."""
        return cls((batch, heads, rows, depth), 0, heads * rows * depth, rows * depth, depth)

    @property
    def elements(self) -> int:
        return math.prod(self.buffer)

    def stored(self, kind: str, depth: int) -> Access | None:
        """The same rows in an element type; None if other numbers than whole rows lie between them."""
        if kind != "int8":
            return replace(self, dtype=kind)
        strides = (self.offset, self.batch, self.head, self.row)
        if self.buffer[-1] % depth or any(stride % depth for stride in strides):
            return None
        each = ByteRows.of_cache(depth).nbytes
        return Access(stored_shape(self.buffer, kind, depth), *(stride // depth * each for stride in strides), kind)


def stored_shape(shape: tuple[int, ...], kind: str, depth: int) -> tuple[int, ...]:
    """The shape of a tensor of rows of keys or values in an element type."""
    return (*shape[:-1], shape[-1] // depth * ByteRows.of_cache(depth).nbytes) if kind == "int8" else shape


@dataclass(frozen=True)
class PositionScores:
    """Scores by position: that of query i and key j is scale · (x[r] · table[…, index[j, i]]), r being i or j as `by` says.

    x is [queries or keys, depth]. The table is [positions, depth] by query, so that products with a block of queries are like
    scores, and [depth, positions] by key.
    """

    by: str  # "query" or "key"
    x: Access
    table: Access
    index: tuple[int, int, int, int]  # the shape of its tensor, [batch or 1, heads or 1, keys, queries or 1]
    depth: int
    positions: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.by not in ("query", "key"):
            raise ValueError(f"scores by position are by query or key, not by {self.by!r}")

    @property
    def dtype(self) -> str:
        return self.dtype_of(self.positions)

    @staticmethod
    def dtype_of(positions: int) -> str:
        """The type of an index."""
        return "int16" if positions <= 1 << 15 else "int32"


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(scale · Q Kᵀ, masked) V, for every batch and head."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int  # of queries and keys
    value_depth: int
    q: Access
    k: Access
    v: Access
    y: Access
    scale: float = 1.0
    masks: tuple[ScoreMask, ...] = ()  # applied in this order
    # After the masks, scores that a causal mask hides are -inf, of valid keys if their number is given, without work for these.
    causal: bool = False
    # int64[batch] says how many keys are valid. Without masks, a query that sees none of them gets 0; masks hide all others.
    has_lengths: bool = False
    # int64[batch] says which key is the first that is read, the masks hiding those before.
    has_begins: bool = False
    group: int = 1  # heads of queries that have one head of keys and values in common
    cap: float | None = None  # scores are cap · tanh(scale · Q Kᵀ), before masking
    nan_is_zero: bool = False  # of a query whose probabilities are NaN, as where all scores are -inf, probabilities are 0
    positions: tuple[PositionScores, ...] = ()  # added where the masks say "positions"

    def __post_init__(self) -> None:
        if self.has_begins and (self.causal or not self.masks):
            raise ValueError("masks hide the keys before the first one")
        if self.has_lengths and self.masks and self.causal:
            raise ValueError("a causal mask of valid keys is the only one")
        if self.heads % self.group:
            raise ValueError(f"{self.heads} heads are no groups of {self.group}")
        if self.nan_is_zero and self.none_is_zero:
            raise ValueError("queries that see no valid key get 0 as it is")
        if self.causal and self.keys < self.queries and not self.has_lengths:
            raise ValueError(f"with a causal mask {self.queries} queries need as many keys, not {self.keys}")
        if sum(mask.kind == "positions" for mask in self.masks) != bool(self.positions):
            raise ValueError("scores by position are added once")

    @property
    def none_is_zero(self) -> bool:
        """Whether a query that sees no key gets 0, and not NaN."""
        return self.has_lengths and not self.masks

    @property
    def flops(self) -> int:
        """Of all products, as if nothing were hidden."""
        rows = self.queries * self.keys * (self.depth + self.value_depth)
        for term in self.positions:
            rows += (self.queries if term.by == "query" else self.keys) * term.positions * term.depth
        return 2 * self.batch * self.heads * rows

    @property
    def mean_keys(self) -> float:
        """Keys that a query takes, with those that masks hide at places: as many keys as are valid while a cache fills, half of
        all; and those before it with a causal mask.
        """
        if self.has_lengths:
            return (self.keys + min(self.queries, self.keys)) / 2
        return self.keys - (self.queries - 1) / 2 if self.causal else self.keys

    @property
    def follows_queries(self) -> bool:
        """Whether row i of the result, as it lies in memory, is that of row i of the queries' tensor."""
        ends = ((self.q, self.depth), (self.y, self.value_depth))
        return self.batch == 1 and all(one.row * self.queries == one.elements and one.row >= depth for one, depth in ends)

    @property
    def follows_keys(self) -> bool:
        """Whether rows of keys and values lie so, too, and are as many, so that rows of an input tell both queries and keys."""
        ends = ((self.k, self.depth), (self.v, self.value_depth))
        dense = all(one.row * self.keys == one.elements and one.row >= depth for one, depth in ends)
        is_whole = not self.has_begins and not (self.causal and self.has_lengths) and self.k.dtype == self.v.dtype == "float32"
        return self.follows_queries and self.keys == self.queries and dense and is_whole

    def __str__(self) -> str:
        sizes = f"{self.batch * self.heads}×[{self.queries}×{self.keys}] depth {self.depth}"
        kinds = [mask.kind for mask in self.masks] + ["causal"] * self.causal
        masks = f" {' and '.join(kinds)} mask{'s' * (len(kinds) > 1)}" if kinds else ""
        stored = "" if self.k.dtype == self.v.dtype == "float32" else f", keys {self.k.dtype}, values {self.v.dtype}"
        return f"{sizes}{masks}{' of valid keys' if self.has_lengths else ''}{' in a window' if self.has_begins else ''}{stored}"

    def encode(self) -> str:
        """As text, for an attribute of a kernel."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> AttentionSpec:
        """The inverse of `encode`."""
        fields = json.loads(text)
        places = {name: _decoded(Access, fields.pop(name)) for name in ("q", "k", "v", "y")}
        masks = tuple(_decoded(ScoreMask, one) for one in fields.pop("masks"))
        positions = tuple(
            _decoded(PositionScores, {**one, **{name: _decoded(Access, one[name]) for name in ("x", "table")}})
            for one in fields.pop("positions")
        )
        return cls(**fields, **places, masks=masks, positions=positions)

    @property
    def mask_parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of a kernel that are masks, in order, by name."""
        shapes = [mask.shape for mask in self.masks if mask.shape]
        return {f"mask{number or ''}": shape for number, shape in enumerate(shapes)}

    @property
    def position_parameters(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of the parameters that follow, of scores by position, by name."""
        result = {}
        for number, term in enumerate(self.positions):
            result[f"x{number}"] = (term.x.buffer, "float32")
            result[f"table{number}"] = (term.table.buffer, "float32")
            result[f"index{number}"] = (term.index, term.dtype)
        return result


def _decoded(kind: type, fields: Mapping[str, Any]) -> Any:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def place_of_key(shape: tuple[int, int, int, int], batch, head, key) -> ir.Expr:
    """The element for query 0 of a tensor [batch or 1, heads or 1, keys, queries or 1]."""
    batches, heads, keys, queries = shape
    at = batch * (heads * keys) if batches > 1 else 0
    return ((at + head * keys if heads > 1 else at) + key) * queries

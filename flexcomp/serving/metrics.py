"""Metrics for Prometheus: counted where requests end, and asked of the pool and decoders when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flexcomp.errors import FlexcompError
from flexcomp.runtime import Pool

from .answers import BUSY, ENDING, FAULT
from .language import LanguageModel
from .limits import Room

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("answered", "invalid", "refused", "failed", "abandoned")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

# From `Pool.stats` of a model: key, name here, factor to its unit, and description.
_MODEL_GAUGES = (
    ("waiting", "queue_length", 1, "Requests that wait"),
    ("running", "running", 1, "Inferences in progress"),
    ("rung", "rung", 1, "Plan in use, from the smallest"),
    ("kept_bytes", "arena_kept_bytes", 1, "Memory that stays with the model between inferences"),
    ("working_bytes", "arena_working_bytes", 1, "Memory that its inferences work in, shared with the models of its lane"),
    ("resident_bytes", "arena_resident_bytes", 1, "Of what is kept, bytes that are in memory now"),
    ("rate", "rate", 1, "Requests a second, as shares are made for"),
)
_MODEL_COUNTERS = (
    ("requests", "pool_requests", 1, "Requests to the pool"),
    ("refused", "pool_refused", 1, "Requests that the pool refused"),
    ("missed", "deadlines_missed", 1, "Requests whose deadline passed"),
    ("restarts", "restarts", 1, "Inferences begun anew because the budget shrank"),
    ("total_stall_ms", "stall_seconds", 1e-3, "Time in which inferences waited for weights"),
    ("total_latency_ms", "inference_seconds", 1e-3, "Time of inferences"),
    ("total_bytes_read", "read_bytes", 1, "Weights read from storage"),
)


# Of a decoder: name here, whether it only grows, description, and how it is found.
_DECODER: tuple[tuple[str, bool, str, Callable[[LanguageModel], int]], ...] = (
    ("budget_bytes", False, "Memory that a decoder with its caches may take", lambda one: one.budget),
    ("arena_bytes", False, "Memory of the plan in use, with that of its draft", lambda one: _total(one, "arena_bytes")),
    ("arena_resident_bytes", False, "Bytes of arenas in memory now", lambda one: sum(s.resident_arena() for s in one.sessions)),
    ("saved_cache_bytes", False, "Caches of conversations that wait for their turn", lambda one: one.turns.saved_nbytes),
    ("saved_cache_limit_bytes", False, "Caches that may be saved", lambda one: one.turns.limit),
    ("replies", False, "Replies that take turns", lambda one: one.turns.lengths[0]),
    ("waiting", False, "Requests that wait for a turn", lambda one: one.turns.lengths[1]),
    ("prompt_tokens", True, "Tokens of prompts whose replies have ended", lambda one: one.prompt_tokens),
    ("tokens", True, "Tokens of replies that have ended", lambda one: one.tokens),
    ("tried_tokens", True, "Tokens that were proposed for them", lambda one: one.tried),
    ("right_tokens", True, "Of those, tokens that were right", lambda one: one.right),
    ("read_bytes", True, "Weights read from storage", lambda one: _total(one, "total_bytes_read")),
)


def _total(model: LanguageModel, name: str) -> int:
    return sum(session.stats()[name] for session in model.sessions)


class Metrics:
    """All metrics of one server, in a registry of its own. Labels are names of models that are, or were, loaded."""

    def __init__(self, pool: Pool, room: Room, languages: Mapping[str, LanguageModel] | None = None) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._registry.register(_OfPool(pool))
        self._registry.register(_OfDecoders({} if languages is None else languages))
        self.in_flight = Gauge("flexcomp_requests_in_flight", "Requests being answered", registry=registry)
        held = Gauge("flexcomp_body_bytes", "What requests hold, from bodies to answers", registry=registry)
        held.set_function(lambda: room.used)
        most = Gauge("flexcomp_body_limit_bytes", "What requests may hold", registry=registry)
        most.set(room.nbytes)
        self._requests = Counter(
            "flexcomp_requests", "Requests that ended, by how", ["model", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "flexcomp_request_seconds", "From a request's headers to its answer", ["model"], buckets=_SECONDS, registry=registry
        )
        self._waited = Histogram(
            "flexcomp_queue_seconds", "Time in the queue of the pool", ["model"], buckets=_SECONDS, registry=registry
        )

    def count(self, model: str, outcome: str, took_s: float, waited_s: float | None) -> None:
        """A request ended, in one of OUTCOMES. Latencies are those of answers."""
        self._requests.labels(model, outcome).inc()
        if outcome == "answered":
            self._seconds.labels(model).observe(took_s)
        if waited_s is not None:
            self._waited.labels(model).observe(waited_s)

    @staticmethod
    def outcome_of(status: int) -> str:
        """The outcome of a request that got an error."""
        return "refused" if status in (BUSY, ENDING) else "failed" if status >= FAULT else "invalid"

    def text(self) -> bytes:
        """As Prometheus reads it; CONTENT_TYPE. Looks through the models' memory, which takes long if large."""
        return generate_latest(self._registry)


class _OfPool:
    """Asks the pool on each request for metrics."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def describe(self) -> list[Metric]:
        return []  # so that registering asks nothing

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self._pool.stats(at_once=False)
        except FlexcompError:  # closed: the server is ending
            return
        yield GaugeMetricFamily("flexcomp_budget_bytes", "Memory that all models may take", stats["budget_bytes"])
        yield GaugeMetricFamily("flexcomp_claimed_bytes", "Memory that they take", stats["claimed_bytes"])
        yield CounterMetricFamily("flexcomp_reshared", "Times that memory was shared out anew", stats["reshared"])
        for key, what in (("bytes", "Working memory"), ("busy", "Inferences in progress"), ("waiting", "Requests that wait")):
            lanes = GaugeMetricFamily(f"flexcomp_lane_{key}", f"{what}, of a lane", labels=["lane"])
            for index, lane in enumerate(stats["lanes"]):
                lanes.add_metric([str(index)], lane[key])
            yield lanes
        for family, table in ((GaugeMetricFamily, _MODEL_GAUGES), (CounterMetricFamily, _MODEL_COUNTERS)):
            for key, name, factor, what in table:
                metric = family(f"flexcomp_model_{name}", what, labels=["model"])
                for model, said in stats["models"].items():
                    if said.get(key) is not None:
                        metric.add_metric([model], said[key] * factor)
                yield metric


class _OfDecoders:
    """Asks decoders on each request for metrics."""

    def __init__(self, languages: Mapping[str, LanguageModel]) -> None:
        self._languages = languages

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        decoders = self._languages.items()  # of one moment: they come and go
        for name, grows, what, value in _DECODER if decoders else ():
            metric = (CounterMetricFamily if grows else GaugeMetricFamily)(f"flexcomp_decoder_{name}", what, labels=["model"])
            for model, one in decoders:
                with suppress(FlexcompError):  # closed meanwhile
                    metric.add_metric([model], value(one))
            yield metric

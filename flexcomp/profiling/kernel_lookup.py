"""A build's look-ups in a tuning database."""

from __future__ import annotations

from collections.abc import Mapping

from flexcomp.profiling.kernel_records import Database
from flexcomp.schedules.tiles.spec import Spec, identity
from flexcomp.version import __version__


class Measurements:
    """Times of kernels for one target and number of threads, and which of them were asked for."""

    def __init__(self, database: Database, target: str, threads: int) -> None:
        self._target, self._threads = target, threads
        usable = [r for r in database.records if (r.target, r.threads, r.flexcomp) == (target, threads, __version__)]
        self._database = Database()
        self._database.extend(usable)
        self._asked: dict[str, bool] = {}  # layer: whether it was measured
        self._layers = {record.layer for record in usable}
        self._others = len(database.records) - len(usable)

    def __call__(self, spec: Spec) -> Mapping[str, float]:
        """Seconds of the kernels of a layer, by name; none if not measured."""
        layer = identity(spec)
        seconds = self._database.seconds((layer, self._target, self._threads))
        self._asked[layer] = bool(seconds)
        return seconds

    def note(self) -> str:
        """One line on the findings, once all layers have been asked for."""
        found = sum(self._asked.values())
        parts = [f"{found} of {len(self._asked)} kinds of layers measured"]
        if unknown := len(self._layers - self._asked.keys()):
            parts.append(f"{unknown} measured ones are not in this network")
        if self._others:
            threads = f"{self._threads} thread{'s' * (self._threads > 1)}"
            parts.append(
                f"{self._others} records are for another target, not for {threads}, or of another version of flexcomp"
            )
        return "; ".join(parts)

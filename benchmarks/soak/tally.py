"""The results of a soak so far, and their verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT = 4 << 20  # bytes beyond the idle process and the budgets
GROWTH = 1 << 20  # bytes from the lowest to the highest idle process
JUDGED_MINUTES = 60.0


@dataclass
class Tally:
    """The worker's reports so far."""

    rounds: int = 0
    failures: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    most_over: int = -(1 << 62)
    idle: list[tuple[float, int]] = field(default_factory=list)  # seconds since the start, bytes
    trouble: str = ""  # the worker's end, if unexpected

    def add(self, at_s: float, told: dict) -> None:
        """One round."""
        self.rounds, self.failures, self.counts = told["round"], told["failures"], told["counts"]
        self.most_over = max(self.most_over, told["over_bytes"])
        self.idle.append((at_s, told["idle_rss_bytes"]))

    def halves(self) -> tuple[list[int], list[int]]:
        """Idle memory in the first and in the second half of the time."""
        middle = self.idle[-1][0] / 2 if self.idle else 0
        return [n for at, n in self.idle if at < middle], [n for at, n in self.idle if at >= middle]

    def line(self, at_s: float) -> str:
        """For somebody who watches."""
        runs = self.counts.get("run", 0) + self.counts.get("burst", 0)
        return (
            f"{at_s / 60:6.1f} min  {self.rounds} rounds  {sum(self.counts.values())} actions ({runs} of inferences)  "
            f"idle {self.idle[-1][1] / 2**20:.2f} MiB  over budgets {self.most_over / 2**20:+.2f} MiB  {self.failures} failures"
        )

    def summary(self, minutes: float, seed: int) -> dict:
        """The verdict."""
        first, second = self.halves()
        growth = max(second) - min(second) if second else 0
        judged = minutes >= JUDGED_MINUTES
        good = not (self.failures or self.trouble or self.most_over > LIMIT or not self.idle or (judged and growth > GROWTH))
        mib = lambda values: [round(f(values) / 2**20, 3) for f in (min, max)] if values else None  # noqa: E731
        return {
            "good": good, "minutes": minutes, "seed": seed, "rounds": self.rounds, "failures": self.failures,
            "trouble": self.trouble, "over_budgets_mib": round(self.most_over / 2**20, 3), "idle_mib_first_half": mib(first),
            "idle_mib_second_half": mib(second), "second_half_range_mib": round(growth / 2**20, 3),
            "range_judged": judged, "counts": self.counts,
        }  # fmt: skip

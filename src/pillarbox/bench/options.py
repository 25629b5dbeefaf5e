"""What is to be measured, and how many events that takes at most."""

from collections.abc import Collection
from dataclasses import dataclass

from pillarbox.bench.load import Load

MEASUREMENTS = ("read", "drain", "sustained", "latency", "writer", "idle")
RATES = (100, 1000)
TEXTBOOK = 500
"""So many events are enough to know how fast the textbook loop is."""
MOST = 3
"""What goes on for some seconds, at whatever rate, ends after so many times `events`."""
MOST_APPLIED = 10_000
"""So many events are enough to know how fast a consumer is."""
SHARE = 0.8
"""Of the drain rate, at which latency is measured too."""


@dataclass(frozen=True, slots=True)
class Options:
    """What somebody wants to know."""

    load: Load
    events: int = 100_000
    relays: int = 1
    seconds: float = 5.0
    measurements: Collection[str] = MEASUREMENTS

    @property
    def drains(self) -> bool:
        """Latency is measured at a share of the drain rate, so that must be known."""
        return bool({"drain", "latency"} & set(self.measurements))

    @property
    def textbook(self) -> int:
        return min(TEXTBOOK, self.events)

    @property
    def most(self) -> int:
        """What is written while the clock runs, at most."""
        return MOST * self.events

    def most_events(self) -> int:
        """Say how many events are written at most."""
        steady = 2 * (sum(map(self.at, RATES)) + self.most) + len(RATES) + 1  # each after a lead, as long at most
        parts = {
            "read": self.events,
            "sustained": self.most,
            "latency": 2 * steady + min(self.events, MOST_APPLIED),
            "writer": self.most,
        }
        drained = self.events + self.textbook if self.drains else 0
        return drained + sum(count for name, count in parts.items() if name in self.measurements)

    def at(self, rate: float) -> int:
        """Say how many events are written at a steady rate."""
        return max(1, min(int(rate * self.seconds), self.most))

"""Figures: what `stats` and the metrics show of an outbox. Pure: what the store has counted in, rates and ages out."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pillarbox.admin.diagnosis import living
from pillarbox.ports import LATELY, Stats, Status

PARKED: tuple[Status, ...] = ("retrying", "blocked", "delayed", "dead")


class TopicFigures(NamedTuple):
    """The counts of one topic; of each state the first 10,000 events of all topics."""

    pending: int
    retrying: int
    blocked: int
    delayed: int
    dead: int
    paused: bool


class Figures(NamedTuple):
    """The state of an outbox in numbers, as of `now`."""

    stats: Stats
    now: datetime

    @property
    def pending(self) -> int:
        """How many are pending: counted up to 10,000, estimated beyond."""
        return self.stats.pending if self.stats.pending_about is None else self.stats.pending_about

    @property
    def oldest_pending_age(self) -> timedelta | None:
        """How long the oldest pending event has waited; never below zero, for clocks differ."""
        if self.stats.oldest_pending_at is None:
            return None
        return max(self.now - self.stats.oldest_pending_at, timedelta(0))

    @property
    def published_per_second(self) -> float:
        """How many were published a second, over the last minute."""
        return self.stats.published_lately / LATELY.total_seconds()

    @property
    def relays(self) -> int:
        """How many relays live."""
        return len(living(self.stats.relays, self.now))

    @property
    def topics(self) -> Mapping[str, TopicFigures]:
        """The counts of every topic of which something is pending, parked or paused, by name."""
        stats = self.stats
        paused = {pause.topic for pause in stats.pauses}
        return {
            topic: TopicFigures(
                pending=stats.pending_by_topic.get(topic, 0),
                paused=topic in paused,
                **{state: stats.parked_by_topic.get(topic, {}).get(state, 0) for state in PARKED},
            )
            for topic in sorted({*stats.pending_by_topic, *stats.parked_by_topic, *paused})
        }

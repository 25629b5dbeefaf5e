"""Figures: what `stats`, `top` and the metrics show of an outbox. Pure: the store's counts in, rates and ages out."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pillarbox.admin.diagnosis import held_topics, living
from pillarbox.ports import LATELY, Stats, Status

PARKED: tuple[Status, ...] = ("retrying", "blocked", "delayed", "dead")
FAILED: tuple[Status, ...] = ("retrying", "blocked", "dead")


class TopicFigures(NamedTuple):
    """The counts of one topic; of each state the first 10,000 events of all topics."""

    pending: int
    retrying: int
    blocked: int
    delayed: int
    dead: int
    paused: bool


State = Literal["held", "paused", "dead", "retrying", "flows"]


class TopicSeen(NamedTuple):
    """One topic as `top` shows it: how much waits, since when, how fast events come, and what keeps it back."""

    topic: str
    pending: int
    age: timedelta | None
    """How long its oldest pending event has waited."""
    added_per_second: float
    """Events added to it, over the last minute; what is published is counted for all topics together."""
    failed: int
    """Events of it that are retrying, blocked or dead."""
    state: State
    why: str
    """Who paused it and why, or the words of what failed."""


class Figures(NamedTuple):
    """The state of an outbox in numbers, as of `now`."""

    stats: Stats
    now: datetime

    @property
    def pending(self) -> int:
        """How many are pending: counted up to 10,000, estimated beyond."""
        return self.stats.pending if self.stats.pending_about is None else self.stats.pending_about

    @property
    def pending_told(self) -> str:
        """How many are pending, for people: whether that was counted is part of it."""
        if self.stats.pending_exact:
            return f"{self.pending:,}"
        return f"{'more than' if self.stats.pending_about is None else 'about'} {self.pending:,}"

    @property
    def delayed_told(self) -> str:
        """How many are delayed, for people: the time of some may have come, and some may be copies of a replay."""
        parts = ((self.stats.overdue, "overdue"), (self.stats.copies, "replayed"))
        told = ", ".join(f"{count:,} {what}" for count, what in parts if count)
        return f"{self.stats.delayed:,}" + (f" ({told})" if told else "")

    @property
    def oldest_pending_age(self) -> timedelta | None:
        """How long the oldest has waited that a relay could carry now: a pending event, or a delayed one whose time has
        come; never below zero, for clocks differ."""
        oldest = self.stats.oldest_waiting_at
        return None if oldest is None else max(self.now - oldest, timedelta(0))

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

    @property
    def seen(self) -> Sequence[TopicSeen]:
        """Every topic that something is to be said of, or that events came to lately: what does not flow first."""
        topics = [self._seen(topic) for topic in {*self.topics, *self.stats.added_by_topic}]
        return sorted(topics, key=lambda seen: (seen.state == "flows", seen.topic))

    def _seen(self, topic: str) -> TopicSeen:
        stats, parked = self.stats, self.stats.parked_by_topic.get(topic, {})
        oldest = stats.oldest_by_topic.get(topic)
        lasted = LATELY if stats.added_since is None else max(self.now - stats.added_since, timedelta(seconds=1))
        return TopicSeen(
            topic,
            stats.pending_by_topic.get(topic, 0),
            None if oldest is None else max(self.now - oldest, timedelta(0)),
            stats.added_by_topic.get(topic, 0) / lasted.total_seconds(),
            sum(parked.get(state, 0) for state in FAILED),
            *self._state(topic, parked),
        )

    def _state(self, topic: str, parked: Mapping[Status, int]) -> tuple[State, str]:
        """Say what keeps a topic back, what an operator did before what failed by itself."""
        for pause in self.stats.pauses:
            if pause.topic == topic:
                return "paused", f"by {pause.who}: {pause.why}"
        if away := held_topics(self.stats.relays, self.now).get(topic):
            return "held", away.error
        for state in ("dead", "retrying"):
            if parked.get(state):
                errors = (one.last_error for one in self.stats.heads if (one.topic, one.status) == (topic, state))
                return state, next(errors, None) or ""
        return "flows", ""

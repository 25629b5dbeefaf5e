"""Routing: the topic, key, lane and line of an event. Pure functions; the lane's test vectors are shared with SQL."""

import string
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Literal

from pillarbox.core.entry import Entry
from pillarbox.core.foreign import OURS, reader_of
from pillarbox.errors import ConfigError, InvalidEvent

LANES = 64
LONGEST = 255
"""Characters in a name: a type, an id, a topic."""
DEFAULT_TOPIC = "{aggregate_type}-events"

Line = tuple[str, str, str]
"""What is kept in order: topic, aggregate type, aggregate id; the last two are empty for a whole topic."""
REPLAYED = "\0replayed "
"""So begins the aggregate type in a line of copies; no event has one like it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What holds for one topic: its order, what a dead event does to its followers, its format on the wire; and where
    messages that are not ours say their id, type and key (`core.foreign`)."""

    order: Literal["aggregate", "global", "none"] = "aggregate"
    when_dead: Literal["block", "skip"] = "block"
    format: Literal["plain", "cloudevents", "cloudevents-structured"] = "plain"
    id: str = OURS
    type: str = OURS
    key: str = OURS

    def __post_init__(self) -> None:
        for setting in ("id", "type", "key"):
            reader_of(setting, getattr(self, setting))


class Topics:
    """The topics that have settings of their own; every other one has the defaults."""

    def __init__(self, named: dict[str, Topic] | None = None) -> None:
        self._named = dict(named or {})
        self._default = Topic()
        self.formats = {name: topic.format for name, topic in self._named.items()}
        """The format of each; of every other one it is plain."""

    @property
    def whole(self) -> frozenset[str]:
        """The topics that are one line as a whole."""
        return frozenset(name for name, topic in self._named.items() if topic.order == "global")

    def __getitem__(self, name: str) -> Topic:
        return self._named.get(name, self._default)

    def line_of(self, entry: Entry) -> Line | None:
        """Say which entries this one must not overtake; None if it is free."""
        if not entry.ordered:
            return self._line_of_copy(entry)
        topic, id = entry.topic, entry.aggregate_id
        order = self._named[topic].order if topic in self._named else self._default.order
        if order == "aggregate" and id:
            return topic, entry.aggregate_type, id
        return (topic, "", "") if order == "global" else None

    def _line_of_copy(self, entry: Entry) -> Line | None:
        """Replayed copies of one aggregate's events keep their order among themselves, and hold up nobody else."""
        if entry.replay is None or not entry.aggregate_id or self[entry.topic].order == "none":
            return None
        return entry.topic, REPLAYED + entry.aggregate_type, entry.aggregate_id

    @property
    def without_order(self) -> list[str]:
        """The topics in which nothing waits for anything."""
        return [name for name, topic in self._named.items() if topic.order == "none"]

    @property
    def passing_over_dead(self) -> list[str]:
        """The topics in which what is dead holds nobody back."""
        return [name for name, topic in self._named.items() if topic.when_dead == "skip"]


def check_template(template: str) -> str:
    """Refuse a topic template that names something else than the aggregate's and the event's type."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"topic: {template!r} is not a template: {error}") from error
    fields = [(name, layout, conversion) for _, name, layout, conversion in parsed if name is not None]
    if unknown := {name for name, _, _ in fields} - {"aggregate_type", "event_type"}:
        raise ConfigError(f"topic: {template!r} names {sorted(unknown)}; known are aggregate_type and event_type")
    if any(layout or conversion for _, layout, conversion in fields):
        raise ConfigError(f"topic: {template!r} formats a name; write it bare: {{aggregate_type}}, {{event_type}}")
    if not template or not template.isprintable():
        raise ConfigError(f"topic: the template {template!r} is empty or holds control characters")
    return template


@lru_cache(maxsize=4096)
def topic_of(template: str, aggregate_type: str, event_type: str) -> str:
    """Fill a topic template. Without an aggregate the separators at the ends go: `{aggregate_type}-events` → `events`.

    >>> topic_of("{aggregate_type}-events", "Order", "OrderPlaced")
    'order-events'
    """
    topic = template.format(aggregate_type=aggregate_type.lower(), event_type=event_type)
    if not aggregate_type:
        topic = topic.strip("-._") or event_type
    if len(topic) > LONGEST:
        raise InvalidEvent(
            f"topic: {topic[:40]!r}… has {len(topic)} characters, at most {LONGEST}; give the event a topic of its own"
        )
    return topic


def lane_of(aggregate_type: str, aggregate_id: str, event_id: str) -> int:
    """Give the lane (0 to 63) that SQL computes too; an event without an aggregate hashes its own id.

    >>> lane_of("order", "42", "")
    26
    """
    text = f"{aggregate_type}:{aggregate_id}" if aggregate_id else event_id
    return sha256(text.encode()).digest()[0] & (LANES - 1)

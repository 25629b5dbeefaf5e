"""The tables of the settings: frozen values with their defaults, checked as they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal

from pillarbox.core.insert import check_identifier
from pillarbox.core.routing import LONGEST as LONGEST_TOPIC
from pillarbox.errors import ConfigError
from pillarbox.settings.brokers import BROKERS
from pillarbox.settings.durations import write_duration
from pillarbox.settings.urls import parse_url

ZERO = timedelta(0)
LONGEST = timedelta(days=36_500)
MOST = {"relay.batch": 100_000, "relay.retries": 1_000, "inbox.concurrency": 1_000}
"""Above these, a value is a slip of the hand."""
HIGHEST_PORT = 65_535


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{key}: {value} is below {least}")


def _within_bounds(table: str, settings: "RelaySettings | RetentionSettings | InboxSettings | HealthSettings") -> None:
    for part in fields(settings):
        key, value = f"{table}.{part.name}", getattr(settings, part.name)
        if isinstance(value, timedelta) and value > LONGEST:
            raise ConfigError(f"{key}: {write_duration(value)} is above 36,500 days")
        if key in MOST and value > MOST[key]:
            raise ConfigError(f"{key}: {value} is above {MOST[key]:,}")


def _identifier(key: str, value: str) -> None:
    try:
        check_identifier(key, value)
    except ConfigError as error:  # the value may be a secret in the wrong place, so the cause is not shown either
        raise ConfigError(str(error).replace(repr(value), "the name")) from None


def _above_zero(key: str, value: timedelta) -> None:
    if value <= ZERO:
        raise ConfigError(f"{key}: must be longer than zero")


def _not_below(key: str, value: timedelta, other_key: str, other: timedelta) -> None:
    if value < other:
        raise ConfigError(f"{key}: {write_duration(value)} is below {other_key}, which is {write_duration(other)}")


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Where the tables are."""

    schema: str = "public"
    prefix: str = "pillarbox_"

    def __post_init__(self) -> None:
        _identifier("outbox.schema", self.schema)
        _identifier("outbox.prefix", self.prefix)


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How the relay reads, publishes and tries again."""

    batch: int = 1000
    idle_first: timedelta = timedelta(milliseconds=5)
    idle_longest: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=15)
    publish_timeout: timedelta = timedelta(seconds=10)
    retries: int = 5
    backoff_first: timedelta = timedelta(seconds=1)
    backoff_longest: timedelta = timedelta(seconds=16)

    def __post_init__(self) -> None:
        _within_bounds("relay", self)
        _at_least("relay.batch", self.batch, 1)
        _at_least("relay.retries", self.retries, 0)
        for name in ("idle_first", "lease", "publish_timeout", "backoff_first"):
            _above_zero(f"relay.{name}", getattr(self, name))
        _not_below("relay.idle_longest", self.idle_longest, "relay.idle_first", self.idle_first)
        _not_below("relay.backoff_longest", self.backoff_longest, "relay.backoff_first", self.backoff_first)

    @property
    def outlasts_its_lease(self) -> bool:
        """A relay might still publish when another one has its lanes, so none starts."""
        return self.publish_timeout >= self.lease


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long settled things are kept: None is for ever, zero deletes at once."""

    published: timedelta | None = timedelta(days=7)
    archive: timedelta | None = ZERO
    inbox: timedelta | None = timedelta(days=30)

    def __post_init__(self) -> None:
        _within_bounds("retention", self)
        if self.inbox is not None and self.inbox <= ZERO:
            raise ConfigError('retention.inbox: "none" would forget what was handled, so copies would be handled again')


@dataclass(frozen=True, slots=True)
class InboxSettings:
    """How a consumer handles events."""

    concurrency: int = 8
    mode: Literal["handle", "store"] = "handle"
    unordered: bool = False
    unhandled: Literal["dead", "ignore", "fail"] = "dead"
    hint: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _within_bounds("inbox", self)
        _at_least("inbox.concurrency", self.concurrency, 1)
        if self.hint is not None and parse_url("inbox.hint", self.hint).scheme not in ("redis", "rediss"):
            raise ConfigError("inbox.hint: must be the URL of a Redis: redis://host:6379/0, or rediss:// with TLS")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """What counts as unhealthy, and where health is served."""

    listen: str | None = None
    oldest_pending: timedelta = timedelta(minutes=5)
    canary: timedelta | None = None
    canary_topic: str = "pillarbox-canary"

    def __post_init__(self) -> None:
        _within_bounds("health", self)
        _above_zero("health.oldest_pending", self.oldest_pending)
        if self.canary is not None:
            _above_zero("health.canary", self.canary)
        if not 0 < len(self.canary_topic) <= LONGEST_TOPIC:
            raise ConfigError(f"health.canary_topic: must be a topic's name, of at most {LONGEST_TOPIC} characters")
        if self.listen is not None:
            split_place(self.listen)


def split_place(listen: str) -> tuple[str, int]:
    """Read where to listen: "127.0.0.1:9464", "[::1]:9464"; port 0 is any that is free."""
    host, _, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or (":" in bare) != host.startswith("[") or not port.isdecimal() or int(port) > HIGHEST_PORT:
        raise ConfigError("health.listen: must be HOST:PORT, such as 127.0.0.1:9464, or none")
    return bare, int(port)


TABLES: Mapping[str, type] = {
    "outbox": OutboxSettings,
    "relay": RelaySettings,
    "retention": RetentionSettings,
    "inbox": InboxSettings,
    "health": HealthSettings,
}
OPTION_TABLES = frozenset(kind.table for kind in BROKERS.values() if kind.table is not None)

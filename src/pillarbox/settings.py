"""Settings: frozen values, from flags, environment, `pillarbox.toml` and defaults, each with where it came from."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from pillarbox.core.routing import Topic


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    schema: str = "public"
    prefix: str = "pillarbox_"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    batch: int = 1000
    idle_first: timedelta = timedelta(milliseconds=5)
    idle_longest: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=15)
    publish_timeout: timedelta = timedelta(seconds=10)
    retries: int = 5
    backoff_first: timedelta = timedelta(seconds=1)
    backoff_longest: timedelta = timedelta(seconds=16)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    published: timedelta | None = timedelta(days=7)
    archive: timedelta | None = timedelta(0)
    inbox: timedelta | None = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class InboxSettings:
    concurrency: int = 8
    mode: Literal["handle", "store"] = "handle"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    listen: str = "127.0.0.1:9464"
    oldest_pending: timedelta = timedelta(minutes=5)
    canary: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    database: str | None = None
    broker: str | None = None
    outbox: OutboxSettings = OutboxSettings()
    relay: RelaySettings = RelaySettings()
    retention: RetentionSettings = RetentionSettings()
    inbox: InboxSettings = InboxSettings()
    health: HealthSettings = HealthSettings()
    topics: dict[str, Topic] = field(default_factory=dict)

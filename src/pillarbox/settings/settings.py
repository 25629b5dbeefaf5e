"""Settings: frozen values, from flags, environment, `pillarbox.toml` and defaults, each with where it came from.

>>> Settings.load(environment={"PILLARBOX_RELAY_BATCH": "500"}, flags={"database": "sqlite:///shop.db"}).relay.batch
500
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pillarbox.core.routing import Topic
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError
from pillarbox.settings.durations import write_duration
from pillarbox.settings.kinds import checked, known_keys, written
from pillarbox.settings.sources import Given, find_file, from_environment, from_file, from_flags
from pillarbox.settings.tables import (
    OPTION_TABLES,
    TABLES,
    HealthSettings,
    InboxSettings,
    OutboxSettings,
    RelaySettings,
    RetentionSettings,
)
from pillarbox.settings.urls import hide


class Shown(NamedTuple):
    """A setting for people: its secrets hidden, with where it came from."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. Build it in code, or load it."""

    database: str | None = field(default=None, repr=False)
    broker: str | None = field(default=None, repr=False)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    relay: RelaySettings = field(default_factory=RelaySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    inbox: InboxSettings = field(default_factory=InboxSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    topics: dict[str, Topic] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """A broker's own options, by the name of its table."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value that is not a default came from: a file, a variable, a flag."""
    file: str | None = field(default=None, compare=False)
    """The settings file that was read."""

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        flags: Mapping[str, object] = MappingProxyType({}),
    ) -> Self:
        """Load settings: a flag wins over `PILLARBOX_…`, that over the file, that over the default."""
        file = find_file(path, environment)
        given = {} if file is None else checked(from_file(file))
        given |= checked(from_environment(environment, known_keys(), OPTION_TABLES))
        given |= checked(from_flags(flags))
        return cls(
            **_values(given),
            origins={key: one.origin for key, one in given.items()},
            file=None if file is None else str(file),
        )

    def check_relay(self) -> None:
        """Raise ConfigError unless a relay may run by these settings."""
        if self.relay.outlasts_its_lease:
            keys = ("relay.publish_timeout", "relay.lease")
            timeout, lease = write_duration(self.relay.publish_timeout), write_duration(self.relay.lease)
            where = ", ".join(sorted({self.origins[key] for key in keys if key in self.origins}))
            raise ConfigError(
                f"relay.publish_timeout: {timeout} must be below relay.lease, which is {lease}: shorten the one or"
                f" lengthen the other{f' ({where})' if where else ''}"
            )

    def shown(self) -> Iterator[Shown]:
        """Give every setting as people write it, secrets hidden, with its origin."""
        for key in known_keys():
            value: Any = self
            for name in key.split("."):
                value = getattr(value, name)
            yield self._show(key, written(key, value))
        for name, topic in self.topics.items():
            for part in fields(topic):
                yield self._show(f"topic.{name}.{part.name}", getattr(topic, part.name))
        for table, options in self.options.items():
            for name, value in options.items():
                yield self._show(f"{table}.{name}", hide(name, value))

    def _show(self, key: str, value: object) -> Shown:
        return Shown(without_secrets(key), hide("", value), self.origins.get(key, "default"))


def _values(given: Mapping[str, Given]) -> dict[str, Any]:
    """Sort what was given into the fields of Settings."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    topics: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    values: dict[str, Any] = {}
    for one in given.values():
        match one.path:
            case [name]:
                values[name] = one.value
            case ["topic", topic, name]:
                topics.setdefault(topic, {})[name] = one.value
            case [table, name] if table in TABLES:
                tables[table][name] = one.value
            case [table, *names]:
                options.setdefault(table, {})[".".join(names)] = one.value
    values |= {name: _table(name, below, given) for name, below in tables.items()}
    made = {name: _topic(name, below, given) for name, below in topics.items()}
    return values | {"topics": made, "options": options}


def _table(name: str, values: Mapping[str, Any], given: Mapping[str, Given]) -> Any:
    try:
        return TABLES[name](**values)
    except ConfigError as error:
        raise ConfigError(f"{error} ({_origins(given, name)})") from error


def _topic(name: str, values: Mapping[str, Any], given: Mapping[str, Given]) -> Topic:
    if not name or "\0" in name:
        wrong = "holds a NUL character" if name else "is empty"
        raise ConfigError(
            f'topic."{without_secrets(name)}": the topic\'s name {wrong}, and no event has such a topic: write for'
            f' example [topic."order-events"] ({_origins(given, "topic", name)})'.replace("\0", "\\0")
        )
    try:
        return Topic(**values)
    except ConfigError as error:
        raise ConfigError(f"topic.{without_secrets(name)}.{error} ({_origins(given, 'topic', name)})") from error


def _origins(given: Mapping[str, Given], *path: str) -> str:
    return ", ".join(sorted({one.origin for one in given.values() if one.path[: len(path)] == path}))

"""Where a bench works: a schema or a file of its own, made when it begins and removed when it ends, however it ends.

Nothing that was there before is opened, read or changed.
"""

import re
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pillarbox.bench.load import Load
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError
from pillarbox.settings import Settings
from pillarbox.settings.tables import HealthSettings, OutboxSettings, RetentionSettings
from pillarbox.settings.urls import file_of, parse_url

ACCOUNTS = 10_000
OWN_FILE = re.compile(r"pillarbox_bench_[0-9a-f]{12}(-stream)?[.]db$")
"""What we call our files. Nothing else is ever removed."""
NO_BROKERS = {
    "stdout": "prints every event where the rows are printed",
    "memory": "ends with the process that has it",
}


if TYPE_CHECKING:
    from pillarbox.bench.postgres import PostgresPlace
    from pillarbox.bench.sqlite import SqlitePlace


class Lane(NamedTuple):
    """Who holds a lane, and since which taking."""

    owner: str | None
    epoch: int


class Place(Protocol):
    """One database, by connections of its own driver. It is given to other processes, so it holds nothing open."""

    writers: int
    """So many write at the same time."""

    @property
    def settings(self) -> Settings:
        """Of relays and consumers that work here."""

    @property
    def topic(self) -> str:
        """Where events go."""

    @property
    def title(self) -> str:
        """What it is, for people."""

    @property
    def databases(self) -> Sequence[Settings]:
        """Where Pillarbox's tables belong."""

    def make(self) -> None:
        """Make it. What is there already is an error: then it is somebody else's."""

    def make_tables(self, connection: Any) -> None:
        """Make what is no part of Pillarbox: the business of writers and consumers, and the textbook's outbox."""

    def drop(self) -> None:
        """Remove all that was made here, whoever is at work."""

    def failures(self) -> AbstractContextManager[None]:
        """Turn what the driver raises into our errors."""

    def connect(self) -> Any:
        """Connect, in autocommit, durable."""

    def begin(self, connection: Any) -> None: ...
    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement, in which {p} stands before tables, and %s for parameters."""

    def outbox(self) -> Any: ...
    def inbox(self, consumer: str) -> Any: ...
    def fill(self, connection: Any, load: Load, first: int, count: int) -> None:
        """Add events in the current transaction, or one of its own, in the cheapest way there is."""

    def fill_textbook(self, connection: Any, load: Load, count: int) -> None:
        """Give the textbook as much to do."""

    def settle_down(self, connection: Any) -> None:
        """Let the server finish what it owes after writing, so that nobody pays for it later."""

    def written(self, connection: Any) -> int | None:
        """Give the place in the WAL that the server has reached, in bytes; None if there is no such thing."""

    def used(self, connection: Any) -> float | None:
        """Give the processor time that the server has used, in seconds; None if it is not here or cannot be seen."""

    def lanes(self, connection: Any) -> Sequence[Lane]:
        """Say who holds the lanes."""

    @property
    def columns(self) -> str:
        """The columns that a relay reads."""

    @property
    def textbook(self) -> Sequence[str]:
        """The statements of the textbook: give the next one, mark it."""


def place_for(settings: Settings) -> "SqlitePlace | PostgresPlace":
    """Choose a place of its own, beside what the settings name; nothing is opened yet.

    Raises ConfigError for what cannot be measured.
    """
    name = f"pillarbox_bench_{secrets.token_hex(6)}"
    database = _of_its_own(settings, name)
    if parse_url("database", database.database or "").scheme == "sqlite":
        from pillarbox.bench.sqlite import SqlitePlace

        return SqlitePlace(database, topic_of(name))
    from pillarbox.bench.postgres import PostgresPlace

    return PostgresPlace(database, topic_of(name))


def topic_of(name: str) -> str:
    return name.replace("_", "-")


def _of_its_own(settings: Settings, name: str) -> Settings:
    """Keep what was set for relays and brokers, and leave out what others would notice."""
    assert settings.database is not None
    assert settings.broker is not None
    scheme = parse_url("broker", settings.broker).scheme
    if scheme in NO_BROKERS:
        raise ConfigError(f"broker: {scheme}: {NO_BROKERS[scheme]}: name one that keeps what it is given")
    return replace(
        settings,
        database=_beside("database", settings.database, f"{name}.db"),
        broker=_beside("broker", settings.broker, f"{name}-stream.db"),
        outbox=OutboxSettings(schema=name),
        retention=RetentionSettings(),
        health=HealthSettings(),
        inbox=replace(settings.inbox, hint=None, mode="handle", unhandled="dead"),
        topics={},
    )


def _beside(setting: str, url: str, name: str) -> str:
    """Put a file beside the one that a URL names, so that it is on the same disk; give other URLs as they are."""
    parsed = parse_url(setting, url)
    if parsed.scheme != "sqlite":
        return url
    directory = Path(file_of(setting, parsed)).parent.resolve()
    if not directory.is_dir():
        raise ConfigError(f"{setting}: there is no directory {directory}, in which {without_secrets(url)} would be")
    return f"sqlite:///{directory / name}"


def remove_files(url: str | None) -> None:
    """Remove a file of our own, and what SQLite and relays have put beside it."""
    file = Path((url or "").removeprefix("sqlite:///"))
    if not OWN_FILE.match(file.name):
        raise ValueError(f"{file} is no file of a bench, and is not removed")
    for one in file.parent.glob(f"{file.stem}*"):
        one.unlink(missing_ok=True)

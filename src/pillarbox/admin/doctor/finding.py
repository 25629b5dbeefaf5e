"""What the checks are made of: facts in, troubles out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pillarbox.admin.diagnosis import Severity
from pillarbox.facts import BrokerFacts, PostgresFacts, SqliteFacts
from pillarbox.ports import Kept, Stats
from pillarbox.settings import Settings


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks know."""

    settings: Settings
    now: datetime
    """By the clock of the database, as far as there is one."""
    store: SqliteFacts | PostgresFacts | None = None
    """How the database is; None if there is none, or it could not be asked."""
    stats: Stats | None = None
    """How the outbox is; None without its tables."""
    unread: str | None = None
    """Why the database, or the outbox in it, could not be read."""
    topics: Sequence[str] = ()
    """Those that the broker was asked about."""
    kept: Sequence[Kept] | None = None
    """How long it keeps those of them that it has; None if it was not asked, or keeps nothing that was had."""
    broker: BrokerFacts | None = None
    """How it is; None if there is nothing to ask it, or it could not be asked."""
    away: str | None = None
    """Why the broker could not be asked."""
    unset: Sequence[str] = ()
    """Which of the two is not set at all: "database", "broker"."""


class Trouble(NamedTuple):
    """What a check has found: how bad; what is wrong, where it leads and what to do; and commands (either of them)."""

    severity: Severity
    line: str
    commands: tuple[str, ...] = ()


def not_looked_at(why: str) -> Trouble:
    """Say so of what there is nothing to look at: that nothing was found would be another thing."""
    return Trouble("note", f"not looked at: {why}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the table: a check, and what it has found; fine and without words if nothing."""

    check: str
    severity: Severity
    line: str = ""
    commands: tuple[str, ...] = ()


Checks = Mapping[str, Callable[[Facts], Iterator[Trouble]]]
"""A group of checks, by name, in the order in which they are told."""

"""PostgreSQL when it fails: crashes, failovers, a relay in slow motion, and mutants that lack one rule of the log.

Used by the tests of crashes, failovers and restores. A relay in mid-query sees an error and forgets by itself; the
dangerous one is asleep or publishing. So most of these tests take the store's own steps one by one.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import uuid4

import psycopg

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.routing import Topics
from pillarbox.core.window import BLOCKED, Settlement
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.psycopg import Outbox
from pillarbox.stores.postgres import PostgresStore
from pillarbox.telemetry.hooks import Hooks
from servers.postgres import Postgres

PATIENCE = 30.0
QUIET = {"autovacuum": "off"}
"""Settings of a server on which nothing but the test flushes the write-ahead log."""


class WallClock:
    """The time of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class SlowRelay:
    """A relay in slow motion: the store's steps one by one, and the names of what it has published, in order."""

    def __init__(self, url: str, owner: str = "a", *, topics: Topics | None = None, lease: float = 60) -> None:
        self.wire: list[str] = []
        self._topics = topics or Topics()
        self.store = PostgresStore(
            url,
            owner=owner,
            lease=timedelta(seconds=lease),
            topics=self._topics,
            clock=WallClock(),
            hooks=Hooks(),
            progress=timedelta(0),
        )

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.store.close()

    async def read(self, room: int = 1000) -> Sequence[Entry]:
        """Read what comes next, and publish nothing yet."""
        return await self.store.entries(room)

    def publish(self, entries: Iterable[Entry]) -> None:
        """Send, without settling anything yet."""
        self.wire += [entry.event_type for entry in entries]

    async def settle(self, entries: Sequence[Entry]) -> None:
        await self.store.settle([Settlement(entry, PUBLISHED) for entry in entries])

    async def carry(self) -> None:
        """Go on as a relay does until nothing is left: what was lost is forgotten and loaded anew."""
        while True:
            try:
                while entries := await self.read():
                    await self._publish_and_settle(entries)
                return
            except LaneLost:
                await self._take_again()

    async def _publish_and_settle(self, entries: Sequence[Entry]) -> None:
        waits = [not entry.parked and self._topics.line_of(entry) in self.store.blocked for entry in entries]
        self.publish(entry for entry, blocked in zip(entries, waits, strict=True) if not blocked)
        await self.store.settle(
            [
                Settlement(entry, BLOCKED if blocked else PUBLISHED)
                for entry, blocked in zip(entries, waits, strict=True)
            ]
        )

    async def _take_again(self) -> None:
        while True:
            try:
                await self.store.release()
                await self.store.take()
                return
            except StoreUnavailable:  # a direct connection breaks, and the next one is another
                continue


async def migrate(url: str) -> None:
    """Make the tables."""
    async with SlowRelay(url) as relay:
        await relay.store.up()


def add(url: str, *names: str, aggregate: str = "1", topic: str = "orders", durably: bool = True) -> None:
    """Add events of one aggregate, each in a transaction of its own; the name is the event's type."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for name in names:
            with connection.transaction():
                if not durably:
                    connection.execute("SET LOCAL synchronous_commit = off")
                Outbox(topic=topic).add(connection, Event(name, {}, aggregate=("order", aggregate)))


def logged(url: str) -> list[str]:
    """Give the names of what the log holds, in the order of ids."""
    return [row[0] for row in run(url, "SELECT event_type FROM pillarbox_outbox ORDER BY id")]


def run(url: str, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    """Run one statement in a transaction of its own, and give its rows."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def burn(url: str, count: int, ending: str = "ROLLBACK") -> None:
    """Use up transaction ids."""
    run(url, f"DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); {ending}; END LOOP; END $$")


def next_xid(url: str) -> int:
    return int(run(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")[0][0])


def until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.01)


async def soon(condition: Callable[[], bool], what: str) -> None:
    """Wait for something while tasks of our own go on."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        await asyncio.sleep(0.01)


# A backend that is killed makes PostgreSQL restart in place: the postmaster, its port and its identity stay


def stop_flushing(server: Postgres) -> None:
    """Stop the WAL writer: from now on only a durable commit brings anything to disk."""
    os.kill(_walwriter(server), signal.SIGSTOP)


def crash_in_place(server: Postgres) -> None:
    """Kill one backend, as when memory runs out; wait until the server has restarted."""
    walwriter = _walwriter(server)
    victim = psycopg.connect(server.url())
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    os.kill(walwriter, signal.SIGKILL)  # a stopped one would be waited for
    victim.close()
    until(lambda: _restarted(server, walwriter), "the server has restarted")


def _restarted(server: Postgres, walwriter: int) -> bool:
    try:
        return _walwriter(server) != walwriter
    except (psycopg.OperationalError, IndexError):
        return False


def _walwriter(server: Postgres) -> int:
    return int(server.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")[0][0])


# A failover: the standby becomes the primary, without what it has not received


# What the tests are there for: each rule of the log, taken out


@dataclass(frozen=True)
class Mutant:
    """The store's functions with something replaced in them."""

    lacks: str
    changes: tuple[tuple[str, str, str], ...]

    def install(self, url: str) -> None:
        for function, old, new in self.changes:
            [[text]] = run(url, f"SELECT pg_get_functiondef('pillarbox_{function}'::regproc)")
            assert old in text, f"pillarbox_{function} has no {old!r} any more: mend the mutant"
            run(url, text.replace(old, new))

    def __str__(self) -> str:
        return self.lacks


_UNCHECKED = ("held", "RETURN (SELECT count(*)", "RETURN true OR (SELECT count(*)")
_NOT_DURABLE = ("poll", "ELSE 'on' END", "ELSE 'off' END")
MEMORY_UNCHECKED = Mutant("the check of what memory came from", (_UNCHECKED,))
TOKENS_UNCHECKED = Mutant("the comparison of tokens", (("held", "AND t.token = came.token", ""),))
CLUSTER_UNCHECKED = Mutant("the comparison of clusters", (("held", "public.pillarbox_cluster() = _cluster", "true"),))
EPOCHS_UNCHECKED = Mutant("the comparison of epochs", (("held", "AND l.epoch = mine.epoch", ""),))
NOT_DURABLE = Mutant("the durable commit of a tick", (_NOT_DURABLE,))
ONLY_IN_MEMORY = Mutant("the snapshot on disk before it is used", (_NOT_DURABLE, _UNCHECKED))
NOT_SYNCHRONOUS = Mutant("the wait for the synchronous standby", (("poll", "ELSE 'on' END", "ELSE 'local' END"),))
LEAKS = Mutant("settings that end with the transaction", (("settle", "ELSE 'on' END, true)", "ELSE 'on' END, false)"),))
SETTLED_KEEP_THEIR_XIDS = Mutant(
    "the mark of what was settled", (("adopt", "THEN mine ELSE '3' END", "THEN mine ELSE xid END"),)
)
NEW_FOR_OLD = Mutant("the bound of what the old cluster can have seen", (("adopt", "(o.id <= t.m2 AND", "(true AND"),))


def remembered_snapshot(file: str) -> Mutant:
    """Store what an earlier statement saw, which a file stands for: snapshot and tick in two statements."""
    snapshot = f"pg_read_file('{file}')::pg_snapshot"
    return Mutant(
        "snapshot and tick in one statement",
        (
            ("poll", "_cluster, pg_current_snapshot(), reached.m3", f"_cluster, {snapshot}, reached.m3"),
            ("poll", "(_force OR late.xids", "(true OR late.xids"),
            ("poll", "_floor, _rows, _bytes) f)", "_floor, 0, _bytes) f)"),  # the earlier statement read the rows: none
        ),
    )


def new_database(server: Postgres) -> str:
    """Make a database of its own for one test, and give its name."""
    name = f"test_{uuid4().hex}"
    server.create_database(name)
    return name

"""Receiving in transactions that are isolated more than PostgreSQL's own are, through every door: the opener says how.

Above READ COMMITTED a transaction sees the database as it was at its first statement. What it would do with something
that others have changed since, PostgreSQL refuses, some of it as late as at the commit: then it is tried again.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import IsolationLevel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

import pillarbox.asyncpg
import pillarbox.django
import pillarbox.psycopg
import pillarbox.sqlalchemy
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.errors import Reject
from pillarbox.telemetry.hooks import Moment
from tests.integration.django_settings import connections, django_database
from tests.integration.inbox_bench import Bench, effect
from tests.integration.receiving_doors import DOORS, Act, Door
from tests.unit.consumer_bench import id_of, message

REPEATABLE_READ, SERIALIZABLE = IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE


def isolated(door: Door, level: IsolationLevel) -> Door:
    """Give a door whose openers are set to a level, each in the way of its tool."""
    words = level.name.replace("_", " ")

    def connect(url: str) -> Any:
        connection = psycopg.connect(url)
        connection.isolation_level = level
        return connection

    async def connect_async(url: str) -> Any:
        connection = await psycopg.AsyncConnection.connect(url)
        await connection.set_isolation_level(level)
        return connection

    def named(url: str, driver: str) -> str:
        return url.replace("postgresql", f"postgresql+{driver}", 1)

    def sessions(url: str) -> Any:
        engine = sa.create_engine(named(url, "psycopg"), poolclass=NullPool, isolation_level=words)
        return pillarbox.sqlalchemy.Inbox("billing", sessionmaker(engine))

    def async_sessions(url: str, driver: str) -> Any:
        engine = create_async_engine(named(url, driver), poolclass=NullPool, isolation_level=words)
        return pillarbox.sqlalchemy.AsyncInbox("billing", async_sessionmaker(engine))

    def django(url: str) -> Any:
        alias = django_database(url)
        connections.settings[alias]["OPTIONS"] = {"isolation_level": level}
        return pillarbox.django.Inbox("billing", alias)

    of_session = {"default_transaction_isolation": words.lower()}
    inboxes = {
        "psycopg": lambda url: pillarbox.psycopg.Inbox("billing", lambda: connect(url)),
        "psycopg async": lambda url: pillarbox.psycopg.AsyncInbox("billing", lambda: connect_async(url)),
        "asyncpg": lambda url: pillarbox.asyncpg.Inbox(
            "billing", lambda: asyncpg.connect(url, server_settings=of_session)
        ),
        "sqlalchemy": sessions,
        "sqlalchemy async": lambda url: async_sessions(url, "psycopg"),
        "sqlalchemy asyncpg": lambda url: async_sessions(url, "asyncpg"),
        "django": django,
    }
    return door._replace(inbox=inboxes[door.name])


class LevelBench(Bench):
    """A bench whose transactions are isolated."""

    def check_level(self, level: IsolationLevel) -> str:
        """Give a statement that fails in a transaction of another level."""
        words = level.name.replace("_", " ").lower()
        return f"SELECT 1 / (current_setting('transaction_isolation') = '{words}')::int"

    async def consume_both(self, *inboxes: Any, after: float = 0, **more: Any) -> int:
        """Let each of them consume a copy of what there is, at once."""
        self.clock.advance(timedelta(seconds=after))
        return sum(
            await asyncio.gather(*(self.consumer(one, broker, **more).run_once(0.05) for one, broker in inboxes))
        )


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
async def serializable(request: pytest.FixtureRequest, migrated: str) -> AsyncIterator[LevelBench]:
    bench = LevelBench(migrated, isolated(request.param, SERIALIZABLE))
    yield bench
    await bench.close()


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
async def repeatable(request: pytest.FixtureRequest, migrated: str) -> AsyncIterator[LevelBench]:
    bench = LevelBench(migrated, isolated(request.param, REPEATABLE_READ))
    yield bench
    await bench.close()


class Rival:
    """A transaction that reads what a handler writes, and writes what it has read: one of them cannot be committed."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url)
        self._db.isolation_level = SERIALIZABLE

    def begin(self) -> None:
        self._db.execute("SELECT count(*) FROM effects")
        self._db.execute("INSERT INTO accounts VALUES (1)")

    def commit(self) -> None:
        self._db.commit()
        self._db.close()


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
async def test_a_conflict_that_shows_at_the_commit_is_tried_again_and_counts_nothing(
    serializable: LevelBench, batch: bool
) -> None:
    bench, rival = serializable, Rival(serializable.url)
    last = 3 if batch else 2  # what follows in its transaction would hear of it before the commit

    def acts(event: Event[Any]) -> list[Act]:
        n = event.payload["n"]
        meets = n == last and bench.tries[n] == 1
        reads = [bench.check_level(SERIALIZABLE), "SELECT count(*) FROM accounts"]
        return [*reads, rival.begin if meets else None, effect(event), rival.commit if meets else None]

    bench.broker.receive([message(n) for n in (1, 2, 3)])
    assert await bench.consume(bench.inbox(acts, batch=batch)) == 3
    assert bench.rows("SELECT id FROM accounts") == [(1,)], "nobody was in the way"
    assert bench.tries[last] == 2
    assert bench.applied() == [1, 2, 3]
    assert bench.parked() == []
    told = [facts for moment, facts in bench.moments if moment is Moment.HANDLED and facts["event_id"] == id_of(last)]
    assert len(told) == 2, "its handler did not come to its end: that was before the commit"
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]


@pytest.mark.parametrize("stores", [False, True], ids=["handle", "store"])
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
async def test_copies_that_two_consumers_get_at_once_are_applied_once_and_in_order(
    repeatable: LevelBench, batch: bool, stores: bool
) -> None:
    bench = repeatable

    def acts(event: Event[Any]) -> list[Act]:
        n = event.payload["n"]
        fails = n % 10 == 4 and bench.tries[n] == 1
        return [bench.check_level(REPEATABLE_READ), effect(event), RuntimeError("no") if fails else None]

    both = [(bench.inbox(acts, batch=batch), MemoryBroker()) for _ in range(2)]
    for _, broker in both:
        broker.receive([message(n, str(n % 3)) for n in range(80)])
    await bench.consume_both(*both, stores=stores)
    async with asyncio.timeout(60):
        while [one for one in bench.parked() if one[1] != "handled"]:
            await bench.consume_both(*both, after=10, stores=stores)
    applied = bench.applied()
    assert sorted(applied) == list(range(80))
    for order in range(3):
        assert [n for n in applied if n % 3 == order] == list(range(order, 80, 3))
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]


@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE], ids=lambda level: level.name)
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
async def test_what_was_parked_after_a_copy_had_begun_is_not_handled(
    migrated: str, door: Door, batch: bool, level: IsolationLevel
) -> None:
    """A copy waits for the one that parks its event; its transaction is of before that, and cannot see it."""
    bench = LevelBench(migrated, isolated(door, level))
    inbox = bench.inbox(lambda event: [bench.check_level(level), effect(event)], batch=batch)
    bench.broker.receive([message(1), message(2)])
    with psycopg.connect(bench.url) as other:
        other.isolation_level = level
        other.execute(
            "SELECT pillarbox_park_received('billing', %s, 'dead', '[\"order-events\",\"order\",\"7\"]', NULL, 1, 'no',"
            " NULL, now(), 'order-events', '7', '{}', '', 'order', '7', 'OrderPlaced', NULL, NULL)",
            [id_of(1)],
        )
        consuming = asyncio.create_task(bench.consume(inbox))
        done, _ = await asyncio.wait({consuming}, timeout=0.3)
        assert not done, "it did not wait for the one that parks it"
        other.commit()
    async with asyncio.timeout(20):
        assert await consuming == 0
    assert [one[:2] for one in bench.parked()] == [("1", "dead"), ("2", "blocked")]
    assert bench.applied() == []
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]
    await bench.close()


async def test_what_one_rejects_is_not_handled_by_the_other(repeatable: LevelBench) -> None:
    bench = repeatable

    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), Reject("no") if event.payload["n"] % 4 == 1 else None]

    both = [(bench.inbox(acts), MemoryBroker()) for _ in range(2)]
    for _, broker in both:
        broker.receive([message(n, str(n)) for n in range(40)])
    await bench.consume_both(*both)
    assert sorted(bench.applied()) == [n for n in range(40) if n % 4 != 1]
    assert sorted(int(n) for n, *_ in bench.parked()) == [n for n in range(40) if n % 4 == 1]

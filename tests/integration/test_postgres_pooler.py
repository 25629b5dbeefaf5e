"""PgBouncer in transaction mode: relays, the admin service and applications leave nothing in the shared sessions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pillarbox import Event, Settings
from pillarbox.core.message import Message
from pillarbox.errors import PublishRejected
from pillarbox.ports import Query
from pillarbox.psycopg import AsyncOutbox
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay, open_admin
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, RunningPostgres
from tests.conftest import installed, skip_unless_ours
from tests.integration.postgres_world import LEAKS, migrate, run, soon

SESSIONS = 10
"""PgBouncer keeps so many for one database; all of them are looked at."""
Sessions = dict[int, dict[str, list[Any]]]
STATE = {
    "settings": "SELECT name, setting, source FROM pg_settings WHERE source <> 'default'",
    "prepared statements": "SELECT name FROM pg_prepared_statements",
    "advisory locks": "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "temporary tables": "SELECT relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()",
    "channels": "SELECT * FROM pg_listening_channels()",
    "cursors": "SELECT name FROM pg_cursors",
}


@pytest.fixture
def pooler(postgres: RunningPostgres) -> Iterator[PgBouncer]:
    skip_unless_ours()
    assert isinstance(postgres, Postgres)
    with installed(lambda: PgBouncer(postgres.port)) as pooler:
        yield pooler


@pytest.fixture
async def shared(pooler: PgBouncer, database: str) -> str:
    """The URL of an outbox through PgBouncer."""
    await migrate(database)
    return pooler.url(database.rpartition("/")[2])


async def sessions(url: str) -> Sessions:
    """Look into every session of the pool: a transaction in each, all open at once."""
    seen = {}
    async with AsyncExitStack() as all_of_them:
        for _ in range(SESSIONS):
            # PgBouncer itself passes a client's name on, and lets it stand for clients that have none.
            connection = await psycopg.AsyncConnection.connect(url, prepare_threshold=None, application_name="test")
            await all_of_them.enter_async_context(connection)
            [pid] = await (await connection.execute("SELECT pg_backend_pid()")).fetchone() or [0]
            seen[pid] = {name: await (await connection.execute(sql.encode())).fetchall() for name, sql in STATE.items()}
    return seen


def left_behind(before: Sessions, after: Sessions) -> list[object]:
    """Name what is in a session now and was not before."""
    return [item for pid in before for name in STATE for item in after[pid][name] if item not in before[pid][name]]


class Wire:
    """Publishes to a list; one event is refused for good."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.troubles: list[object] = []
        self.renewals = 0

    async def publish(self, messages: list[Message]) -> None:
        if any(message.headers["type"] == "bad" for message in messages):
            raise PublishRejected("this one never")
        self.names += [message.headers["type"] for message in messages]

    def listen(self, moment: Moment, facts: Facts) -> None:
        self.renewals += moment is Moment.LEASE_RENEWED
        if moment in (Moment.LANES_LOST, Moment.STORE_AWAY):
            self.troubles.append(facts["error"])

    async def until(self, *names: str) -> None:
        await soon(lambda: set(names) <= set(self.names), f"{names} are published")


@asynccontextmanager
async def relays(url: str, wire: Wire, count: int) -> AsyncIterator[None]:
    settings = Settings(relay=RelaySettings(batch=1, lease=timedelta(seconds=3), publish_timeout=timedelta(seconds=2)))
    running = [Relay(settings, database=url, publish=wire.publish, hooks=Hooks(wire.listen)) for _ in range(count)]
    tasks = [asyncio.create_task(relay.run()) for relay in running]
    try:
        yield
    finally:
        for relay in running:
            relay.stop()
        await asyncio.gather(*tasks)


async def add(url: str, name: str, topic: str = "orders") -> None:
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as connection:
        await AsyncOutbox(topic=topic).add(connection, Event(name, {}, aggregate=("order", name)))


async def work(url: str) -> Wire:
    """Do everything that Pillarbox does on a database, in two relays, the admin service and several applications."""
    wire = Wire()
    async with relays(url, wire, 2), open_admin(Settings(database=url)) as admin:
        await admin.pause("letters", "to see a detour")
        await asyncio.gather(*(add(url, f"order-{n}") for n in range(20)), add(url, "letter", "letters"))
        await add(url, "bad")
        await wire.until(*(f"order-{n}" for n in range(20)))
        await soon(lambda: bool(run(url, "SELECT 1 FROM pillarbox_parked WHERE state = 'dead'")), "one is dead")
        await admin.stats()
        await admin.retry(Query(status=("dead",)))
        await admin.resume("letters")
        await wire.until("letter")
        await admin.replay(Query(type="order-3"))
        await soon(lambda: wire.names.count("order-3") > 1, "it came again")
        await soon(lambda: wire.renewals > 1, "leases were renewed")
    return wire


async def test_nothing_stays_in_a_session(shared: str) -> None:
    before = await sessions(shared)
    wire = await work(shared)
    after = await sessions(shared)
    assert len(before) == SESSIONS
    assert before.keys() == after.keys(), "the pool has other sessions than before"
    assert left_behind(before, after) == []
    assert wire.troubles == []


async def test_a_setting_of_the_session_would_be_seen(shared: str, database: str) -> None:
    LEAKS.install(database)
    await work(shared)
    left = [
        name for session in (await sessions(shared)).values() for name, _, by in session["settings"] if by == "session"
    ]
    assert "synchronous_commit" in left

"""What is particular to asyncpg: pools, codecs of one's own, many events in one call."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pillarbox import dbapi
from pillarbox.asyncpg import Outbox
from pillarbox.core.event import Event
from pillarbox.errors import ConfigError, DuplicateEvent, NoTransaction, SchemaMismatch, StoreError, StoreUnavailable
from tests.integration.postgres_shop import made, read

outbox = Outbox()
PING: Event[dict[str, str]] = Event("Ping", {})


@pytest.fixture
def url(database: str) -> str:
    return made(database)


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def test_ten_thousand_events_go_in_one_query(url: str, connection: Any) -> None:
    full: dict[str, Any] = {"numbered": True, "occurred_at": datetime.now(UTC), "headers": {"a": "b"}}
    events = [Event("X", {"n": n}, aggregate=("order", n % 7), **full) for n in range(10_000)]
    queries: list[str] = []
    async with connection.transaction():
        connection.add_query_logger(lambda query: queries.append(query.query))
        await outbox.add(connection, *events)
        await asyncio.sleep(0)  # asyncpg logs a query a moment after it
        assert len(queries) == 1
    assert read(url, "event_id") == [event.id for event in events]


async def test_a_json_codec_of_the_connection_does_not_encode_twice(url: str, connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
    events = [Event("X", {"a": 1}), Event("X", {"a": 1}, headers={"b": "c"}, idempotency_key="k")]
    async with connection.transaction():
        await outbox.add(connection, events[0])
        await outbox.add(connection, *events)
    assert read(url, "payload::text, headers::text") == [('{"a":1}', None)] * 2 + [('{"a":1}', '{"b": "c"}')]


async def test_a_pool_is_refused_and_its_connections_are_not(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        with pytest.raises(ConfigError, match=r"pool.acquire\(\)"):
            await outbox.add(pool, PING)
        async with pool.acquire() as connection, connection.transaction():
            await outbox.add(connection, PING)
    assert len(read(url, "id")) == 1


async def test_the_door_for_sqlite3_names_this_one(connection: Any) -> None:
    with pytest.raises(ConfigError, match=r"for asyncpg take pillarbox\.asyncpg"):
        dbapi.Outbox().add(connection, PING)
    with pytest.raises(ConfigError, match=r"for asyncpg take pillarbox\.asyncpg"):
        dbapi.Inbox("billing", lambda: connection).first_time(connection, "message")


async def test_a_transaction_begun_by_hand_counts(url: str, connection: Any) -> None:
    await connection.execute("BEGIN")
    await outbox.add(connection, PING)
    await connection.execute("COMMIT")
    with pytest.raises(NoTransaction, match=r"async with connection.transaction\(\)"):
        await outbox.add(connection, PING)
    assert len(read(url, "id")) == 1


async def test_a_duplicate_leaves_the_transaction_usable(url: str, connection: Any) -> None:
    event: Event[Any] = Event("Paid", {}, idempotency_key="k")
    async with connection.transaction():
        await outbox.add(connection, event)
        with pytest.raises(DuplicateEvent):
            await outbox.add(connection, event)
        await outbox.add(connection, PING)
    assert read(url, "event_type") == ["Paid", "Ping"]


async def test_errors_of_the_database_are_ours(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("BEGIN")
    with pytest.raises(SchemaMismatch, match="pillarbox migrate up"):
        await outbox.add(connection, PING)
    with pytest.raises(StoreError, match="roll back"):
        await outbox.add(connection, PING)
    await connection.close()
    with pytest.raises(StoreUnavailable, match="connect and try again"):
        await outbox.add(connection, PING)


def test_without_asyncpg_the_install_line_is_given() -> None:
    script = """
import sys
sys.modules["asyncpg"] = None
from pillarbox.errors import MissingExtra
try:
    import pillarbox.asyncpg
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'pillarbox[asyncpg]'" in done.stdout, done.stderr

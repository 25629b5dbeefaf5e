"""A shop on PostgreSQL: databases with Pillarbox's tables, and outboxes filled with many events at once."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql

from benchmarks import shop
from pillarbox.bench.postgres import PostgresPlace
from pillarbox.core.routing import Topics
from pillarbox.settings import Settings
from pillarbox.stores.postgres import PostgresStore
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock
from servers.postgres import Postgres, RunningPostgres

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",  # no checkpoint in the middle of a round
    "wal_level": "replica",
    "wal_log_hints": "off",
    "wal_keep_size": "0",
}
SMALL = 310 - len('{"order_id":0,"note":""}')
# The server makes the events itself, a thousand a transaction: a client would take minutes for millions.
FILL: LiteralString = """
DO $fill$ DECLARE start bigint; BEGIN
    FOR start IN SELECT generate_series(0, {count} - 1, 1000) LOOP
        INSERT INTO pillarbox_outbox
            (event_id, aggregate_type, aggregate_id, event_type, topic, payload, content_type)
        SELECT gen_random_uuid(), 'order', (n % {orders})::text, 'OrderPlaced', {topic},
               ({before} || n || {after})::json, 'application/json'
        FROM generate_series(start, least(start + 1000, {count}) - 1) n;
        COMMIT;
    END LOOP;
END $fill$
"""


def durable_server() -> Postgres:
    """Make a PostgreSQL 15 whose commits are on disk when they return."""
    return Postgres("15", fsync=True, settings=SETTINGS)


@contextmanager
def bare_database(server: RunningPostgres) -> Iterator[str]:
    """Make an empty database; give its URL, and drop it at the end."""
    name = f"shop_{uuid4().hex}"
    try:
        yield server.create_database(name)
    finally:
        server.drop_database(name)


@contextmanager
def database(server: RunningPostgres, count: int = 0) -> Iterator[str]:
    """Make a shop with `count` events that nobody has published; give its URL, and drop it at the end."""
    with bare_database(server) as url:
        migrate(url)
        if count:
            fill(url, count)
        yield url


def store_at(url: str) -> PostgresStore:
    """Give the relay's access to an outbox."""
    return PostgresStore(
        url, owner="benchmark", lease=timedelta(seconds=15), topics=Topics(), clock=SystemClock(), hooks=Hooks()
    )


def place_at(url: str, broker: str | None = None) -> PostgresPlace:
    """Give what `pillarbox bench` measures on."""
    return PostgresPlace(Settings(database=url, broker=broker), shop.TOPIC)


def migrate(url: str) -> None:
    """Make Pillarbox's tables."""

    async def up() -> None:
        store = store_at(url)
        await store.open()
        await store.up()
        await store.close()

    asyncio.run(up())


def fill(url: str, count: int, orders: int = shop.ORDERS, padding: int = 0) -> None:
    """Add events with the payload that every benchmark has, with more bytes, or with fewer."""
    payload: dict[str, Any] = {"order_id": 0, "note": "." * (SMALL + padding)}
    if padding >= 0:
        payload = shop.payload(0) | {"note": shop.payload(0)["note"] + "." * padding}
    before, after = json.dumps(payload, separators=(",", ":")).split('"order_id":0')
    statement = sql.SQL(FILL).format(
        count=sql.Literal(count), orders=sql.Literal(orders), topic=sql.Literal(shop.TOPIC),
        before=sql.Literal(f'{before}"order_id":'), after=sql.Literal(after),
    )  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection, _indexes_made_later(connection):
        connection.execute("SET synchronous_commit = off")
        connection.execute(statement)
    settle_down(url)


@contextmanager
def _indexes_made_later(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Do without the secondary indexes meanwhile: filling takes half as long."""
    indexes = connection.execute(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = 'pillarbox_outbox'::regclass AND NOT indisprimary"
    ).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}".encode())
    yield
    for _, definition in indexes:
        connection.execute(definition.encode())


def settle_down(url: str) -> None:
    """Let the server finish what it owes after writing, so that nobody pays for it in the next round."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def rewind(url: str) -> None:
    """Forget what was published: the log never changes, only its first position is left."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM pillarbox_ticks WHERE n > (SELECT min(n) FROM pillarbox_ticks)")
        connection.execute("UPDATE pillarbox_lanes SET owner = NULL, crashes = 0, suspect = NULL, suspected = 0")
        connection.execute("DELETE FROM pillarbox_relays")
    settle_down(url)

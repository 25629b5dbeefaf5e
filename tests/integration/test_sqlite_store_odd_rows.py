"""What a plain INSERT can get wrong: refused at once, or the one event's own fault and nobody else's."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.message import encode, encode_all
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt
from pillarbox.core.window import Settlement
from pillarbox.errors import EncodeError
from pillarbox.ports import Query
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.testing.contracts.store_bench import names, read, settle
from tests.integration.sqlite_shop import Shop

ODD = "CAST(x'ff7b' AS TEXT)"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


def insert(shop: Shop, **columns: str) -> None:
    """Insert one event whose columns are SQL."""
    values = {"topic": "'orders'", "event_type": "'Odd'", "aggregate_type": "'order'", "aggregate_id": "'9'"} | columns
    if "body" not in values:
        values = {"payload": "'{}'"} | values
    shop.sql(f"INSERT INTO pillarbox_outbox ({', '.join(values)}) VALUES ({', '.join(values.values())})")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", "0"),
        ("id", "-5"),
        ("available_at", "9223372036854775807"),
        ("available_at", "-9223372036854775807"),
        ("available_at", "'2026-01-01 00:00:00'"),
        ("occurred_at", "1753000000000000000"),
        ("occurred_at", "1753000000.5"),
        ("created_at", "CURRENT_TIMESTAMP"),
        ("created_at", "-1"),
        ("event_id", "x'01'"),
        ("aggregate_type", "x'01'"),
        ("aggregate_id", "x'01'"),
        ("event_type", "x'01'"),
        ("topic", "x'01'"),
        ("topic", "'orders' || char(0) || 'x'"),
        ("payload", "x'ff00'"),
        ("body", "'text'"),
        ("content_type", "x'01'"),
        ("headers", "x'7b7d'"),
        ("idempotency_key", "x'01'"),
        ("number", "-4"),
        ("number", "'x'"),
    ],
)
async def test_a_row_that_nobody_could_read_is_refused_at_once(shop: Shop, column: str, value: str) -> None:
    await shop.store()
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        insert(shop, **{column: value})


async def test_the_first_and_the_last_instant_of_the_calendar_are_taken(shop: Shop) -> None:
    store = await shop.holder()
    insert(shop, occurred_at="-62135596800000000", available_at="253402300799999999")
    [entry] = await read(store)
    calendar = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    assert (entry.occurred_at, entry.available_at) == calendar


@pytest.mark.parametrize(
    "column",
    ["payload", "topic", "event_type", "event_id", "aggregate_type", "aggregate_id", "headers", "content_type"],
)
async def test_text_that_is_no_utf8_is_the_fault_of_its_event_alone(shop: Shop, column: str) -> None:
    store = await shop.holder()
    shop.add("First")
    insert(shop, **{column: ODD})
    shop.add("Last")
    first, odd, last = await read(store)
    assert (first.event_type, last.event_type) == ("First", "Last")
    with pytest.raises(EncodeError, match="event ") as refused:
        encode(odd, 1)
    str(refused.value).encode()
    await settle(store, [first])
    await settle(store, [odd], Dead(str(refused.value)))
    await settle(store, [last])
    [dead] = await store.find(Query(status=("dead",)))
    assert dead.position == odd.position
    assert (await store.stats()).dead == 1
    stored = shop.sql(f"SELECT CAST({column} AS BLOB) FROM pillarbox_parked")
    assert stored == [(b"\xff{",)]


@pytest.mark.parametrize("column", ["event_type", "event_id", "aggregate_type", "aggregate_id", "content_type"])
async def test_a_name_with_nul_is_the_fault_of_its_event_alone(shop: Shop, column: str) -> None:
    store = await shop.holder()
    insert(shop, **{column: "'a' || char(0) || 'b'"})
    shop.add("Last")
    odd, _ = await read(store)
    with pytest.raises(EncodeError, match="NUL"):
        encode(odd, 1)
    with pytest.raises(EncodeError, match="NUL"):
        encode_all([odd], 1)


async def test_a_held_topic_with_nul_takes_no_other_along(shop: Shop) -> None:
    """An application's own table may lack our CHECKs."""
    store = await shop.holder()
    insert(shop, event_type="'Parked'", aggregate_id="''")
    await settle(store, await read(store), RetryAt(shop.clock.now() + timedelta(seconds=5), "the broker said no"))
    store.hold(frozenset({"orders\0x"}))
    assert await store.entries(10) == []
    shop.add("Added")
    shop.clock.advance(6)
    assert names(await read(store)) == ["Parked", "Added"]


async def test_what_is_no_utf8_can_be_retried_and_dropped(shop: Shop) -> None:
    store = await shop.holder()
    insert(shop, payload=ODD)
    await settle(store, await read(store), Dead("no UTF-8"))
    assert await store.retry(Query(status=("dead",))) == 1
    await settle(store, await read(store), Dead("no UTF-8 either"))
    assert await store.drop(Query(status=("dead",))) == 1
    shop.add("Next")
    entries = await read(store)
    assert names(entries) == ["Next"]
    await settle(store, entries, PUBLISHED)


@pytest.mark.parametrize("command", [("status",), ("events", "list"), ("dead", "list"), ("dead", "list", "--json")])
async def test_the_command_line_shows_what_is_no_utf8(shop: Shop, command: tuple[str, ...]) -> None:
    store = await shop.holder()
    insert(shop, payload=ODD, event_type=ODD)
    await settle(store, await read(store), Dead("no UTF-8"))
    run = [sys.executable, "-m", "pillarbox", *command, "--database", f"sqlite:///{shop.path}"]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=False)
    assert (done.returncode, "\\udcff{" in done.stdout) == (3 if command == ("status",) else 0, True), done.stderr


@pytest.mark.parametrize("depth", [10, 980, 1100, 100_000])
async def test_headers_of_any_depth_can_be_looked_at_retried_and_dropped(shop: Shop, depth: int) -> None:
    store = await shop.holder()
    deep = "[" * depth + "]" * depth
    insert(shop, headers=f"""'{{"a": {deep}}}'""")
    await store.settle(await settle_all(store, Dead("its headers")))
    [found] = await store.find(Query())
    assert deep in "".join(found.headers.values())
    assert await store.retry(Query()) == 1
    assert await store.drop(Query(ids=(found.event_id,))) == 1


async def settle_all(store: SqliteStore, verdict: Dead) -> list[Settlement[Entry]]:
    return [Settlement(entry, verdict) for entry in await store.entries(10)]

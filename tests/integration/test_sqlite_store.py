"""Facts of SQLite that the store must stand: full disks, other writers, lost answers, wake-ups."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import Settlement
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.ports import Query
from pillarbox.stores.sqlite.parking import ParkingLot
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.testing.contracts.store_bench import names, publish_all, read, record, replayed, settle
from tests.integration.sqlite_shop import Shop, on_connection

LONG = 20.0
"""Seconds after which a test gives up."""


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


async def test_a_plain_insert_is_enough(shop: Shop) -> None:
    store = await shop.holder()
    shop.sql("INSERT INTO pillarbox_outbox (topic, event_type, payload) VALUES ('orders', 'Placed', '{\"total\": 42}')")
    [entry] = await read(store)
    assert (entry.topic, entry.event_type, entry.data) == ("orders", "Placed", '{"total": 42}')
    assert (entry.aggregate_type, entry.aggregate_id, entry.content_type, entry.headers) == ("", "", None, None)
    seen = await record(store, "Placed")
    assert (len(seen.event_id), seen.event_id[14], seen.content_type) == (36, "4", "application/json")


async def test_settings_of_the_connection_are_durable(shop: Shop) -> None:
    store = await shop.store()

    def settings(db: sqlite3.Connection) -> list[Any]:
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "busy_timeout")]

    assert await on_connection(store, settings) == ["wal", 2, 5000]


async def test_a_full_database_loses_nothing_while_settling(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", payload='{"x": "' + "y" * 20_000 + '"}')
    entries = await read(store)

    def limit(pages: int) -> Any:
        return lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    await on_connection(store, limit(1))  # not less than it has: the next page is one too many
    with pytest.raises(StoreUnavailable, match=r"full.*make room"):
        await settle(store, entries, Dead("refused"))
    assert (await record(store, "A")).status == "pending"
    await on_connection(store, limit(1_000_000))
    await settle(store, entries, Dead("refused"))
    assert (await record(store, "A")).status == "dead"
    assert shop.sql("SELECT count(*) FROM pillarbox_parked") == [(2,)]


async def test_a_full_database_loses_nothing_while_settling_what_was_published(shop: Shop) -> None:
    store = await shop.holder()
    types = [f"T{n}" for n in range(1000)]
    shop.add(*types)
    entries = await read(store)
    await on_connection(store, lambda db: db.execute("PRAGMA max_page_count = 1").fetchone())
    fits = 0
    with pytest.raises(StoreUnavailable, match=r"full.*make room"):  # noqa: PT012 - which one does not fit is SQLite's
        for entry in entries:
            await settle(store, [entry])
            fits += 1
    assert 0 < fits < len(types)
    assert [(await record(store, types[n])).status for n in (fits - 1, fits)] == ["published", "pending"]
    await on_connection(store, lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    await settle(store, entries[fits:])
    published = Query(status=("published",), newest_first=False, limit=len(types) + 1)
    assert [one.type for one in await store.find(published)] == types
    await store.close()
    assert names(await read(await shop.holder("b"))) == []


async def test_an_error_before_the_commit_undoes_everything_and_settling_again_works(shop: Shop) -> None:
    strikes = [RuntimeError("struck")]

    def strike(moment: Moment, facts: Facts) -> None:
        if moment is Moment.SETTLING and strikes:
            raise strikes.pop()

    store = await shop.holder("a", strike)
    shop.add("A", "B")
    entries = await read(store)
    with pytest.raises(RuntimeError, match="struck"):
        await settle(store, entries, Dead("refused"))
    assert shop.sql("SELECT max(last_id) FROM pillarbox_ticks") == [(0,)]
    assert shop.sql("SELECT count(*) FROM pillarbox_parked") == [(0,)]
    await settle(store, entries, Dead("refused"))
    assert shop.sql("SELECT max(last_id) FROM pillarbox_ticks") == [(2,)]
    assert shop.sql("SELECT count(*) FROM pillarbox_parked") == [(2,)]


async def test_a_commit_whose_answer_was_lost_is_believed(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    entries = await read(store)
    shop.sql("INSERT INTO pillarbox_ticks (at, owner, last_id) VALUES (0, 'a', 2)")  # as if A and B were settled
    await settle(store, entries[:2], Dead("refused"))
    assert shop.sql("SELECT count(*) FROM pillarbox_parked") == [(0,)]
    await settle(store, entries)
    assert shop.sql("SELECT last_id FROM pillarbox_ticks ORDER BY n DESC LIMIT 1") == [(3,)]


async def test_what_fails_after_the_commit_settles_no_other_copy_when_it_is_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await shop.holder()
    shop.add("A")
    await publish_all(store)
    await replayed(store, Query(), "replay-1", again=True)
    await replayed(store, Query(), "replay-2", again=True)
    earlier = await read(store)
    with monkeypatch.context() as patch:
        patch.setattr(ParkingLot, "look", locked)  # it reads behind the commit
        with pytest.raises(StoreUnavailable, match="locked"):
            await settle(store, earlier)
    later = await read(store)
    await settle(store, earlier)
    assert [entry.replay for entry in (*earlier, *later)] == ["replay-1", "replay-2"]
    states = "SELECT replay, state FROM pillarbox_parked ORDER BY id"
    assert shop.sql(states) == [("replay-1", "published"), ("replay-2", "delayed")]
    await settle(store, later)
    assert shop.sql(states) == [("replay-1", "published"), ("replay-2", "published")]


def locked(lot: ParkingLot, db: sqlite3.Connection) -> None:
    raise StoreUnavailable("the database is locked")


async def test_what_was_not_given_out_next_cannot_be_settled(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    entries = await read(store)
    with pytest.raises(StoreError, match="the next one given out is 1"):
        await settle(store, entries[1:])
    with pytest.raises(StoreError, match="nothing was recorded"):
        await store.settle([Settlement(entries[0]._replace(position=99), PUBLISHED)])
    assert shop.sql("SELECT max(last_id) FROM pillarbox_ticks") == [(0,)]


async def test_a_writer_that_never_ends_is_named_as_the_reason(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    entries = await read(store)
    await on_connection(store, lambda db: db.execute("PRAGMA busy_timeout = 10").fetchone())
    writer = sqlite3.connect(shop.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="a transaction that was left open"):
        await settle(store, entries)
    writer.execute("ROLLBACK")
    writer.close()
    await settle(store, entries)
    assert (await record(store, "A")).status == "published"


async def test_a_database_that_becomes_read_only_is_unavailable(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    entries = await read(store)
    await on_connection(store, lambda db: db.execute("PRAGMA query_only = 1"))
    with pytest.raises(StoreUnavailable, match="read-only"):
        await settle(store, entries)


async def test_a_commit_of_anybody_ends_the_wait(shop: Shop) -> None:
    store = await shop.holder()
    assert await read(store) == []
    waiting = asyncio.create_task(store.wait(600))
    await asyncio.sleep(0)
    assert not waiting.done()
    shop.add("A")
    await asyncio.wait_for(waiting, LONG)
    assert names(await read(store)) == ["A"]


async def test_what_is_committed_between_reading_and_waiting_ends_the_wait_at_once(shop: Shop) -> None:
    store = await shop.holder()
    assert await read(store) == []
    shop.add("A")
    await asyncio.wait_for(store.wait(600), LONG)


async def test_entries_that_nobody_came_to_fetch_are_given_to_the_next(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    reading = asyncio.create_task(store.entries(10))
    await asyncio.sleep(0)  # it is in the thread now
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert names(await store.entries(2)) == ["A", "B"]
    assert names(await store.entries(10)) == ["C"]
    assert await store.entries(10) == []


async def test_a_chunk_ends_at_sixteen_megabytes(shop: Shop) -> None:
    store = await shop.holder()
    shop.add(*(f"E{n}" for n in range(100)), payload='"' + "x" * 260_000 + '"')
    entries = await store.entries(1000)
    assert 16 << 20 <= sum(len(entry.data) for entry in entries) <= (16 << 20) + 260_002, "one row too many at most"
    assert len(entries) + len(await read(store)) == 100


async def test_tables_with_another_prefix_stand_beside_one_another(shop: Shop) -> None:
    first = await shop.holder()
    second = shop.closed_store("b", prefix="other_")
    await second.open()
    assert await second.up() == [1]
    shop.add("A")
    assert names(await read(first)) == ["A"]
    assert (await second.stats()).pending == 0


async def test_a_full_parking_lot_stops_the_log_until_somebody_looks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.stores.sqlite.parking.ROOM", 3)
    store = await shop.holder()
    shop.add("A", "B", "C", "D")
    await settle(store, await store.entries(3), Dead("refused"))
    assert await read(store) == []
    await store.drop(Query(status=("dead",)))
    assert names(await read(store)) == ["D"]


async def test_a_full_parking_lot_names_its_longest_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.stores.sqlite.parking.ROOM", 3)
    store = await shop.holder()
    shop.add("A", aggregate="1")
    shop.add("B", "C", aggregate="2")
    await settle(store, await store.entries(2), Dead("refused"))
    assert (await store.stats()).full is None
    await settle(store, await read(store), Dead("refused"))
    full = (await store.stats()).full
    assert full is not None
    assert (full.standing, full.head.type, full.behind) == (3, "B", 1)

"""Facts of SQLite that the store must stand: full disks, foreign files, other processes, and what its plans rest on."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import Settlement
from pillarbox.errors import LaneLost, StoreError, StoreUnavailable
from pillarbox.ports import Query, Retention
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.testing.contracts.store_bench import names, publish_all, read, record, settle
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
    assert 16 << 20 <= sum(len(entry.data) for entry in entries) < 26 << 20
    assert len(entries) + len(await read(store)) == 100


async def test_tables_with_another_prefix_stand_beside_one_another(shop: Shop) -> None:
    first = await shop.holder()
    second = shop.closed_store("b", prefix="other_")
    await second.open()
    assert await second.up() == [1]
    shop.add("A")
    assert names(await read(first)) == ["A"]
    assert (await second.stats()).pending == 0


OTHER = """
import asyncio, sys
from datetime import UTC, datetime, timedelta
from pillarbox.core.routing import Topics
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.telemetry.hooks import Hooks

class Clock:
    def now(self): return datetime.now(UTC)

async def main():
    parts = dict(topics=Topics(), clock=Clock(), hooks=Hooks())
    store = SqliteStore(sys.argv[1], owner="other", lease=timedelta(days=1), **parts)
    await store.open()
    lanes = (await store.take()).lanes
    print(len(lanes), [entry.event_type for entry in await store.entries(10)], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def other_relay(shop: Shop) -> tuple["subprocess.Popen[str]", str]:
    """Start a relay in a process of its own; give it and what it says once it has looked for lanes and read."""

    def start() -> tuple["subprocess.Popen[str]", str]:
        process = subprocess.Popen([sys.executable, "-c", OTHER, shop.path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline()

    return await asyncio.to_thread(start)


async def test_a_relay_that_is_killed_is_replaced_at_once(shop: Shop) -> None:
    store = await shop.store("here")
    shop.add("A", "B")
    other, said = await other_relay(shop)
    assert said == "64 ['A', 'B']\n"
    assert (await store.take()).lanes == frozenset()
    other.send_signal(signal.SIGKILL)
    await asyncio.to_thread(other.communicate)
    assert len((await store.take()).lanes) == 64
    assert names(await read(store)) == ["A", "B"]


async def test_a_relay_that_is_stopped_keeps_its_lanes_until_its_lease_is_over(shop: Shop) -> None:
    store = await shop.store("here")
    other, _ = await other_relay(shop)
    other.send_signal(signal.SIGSTOP)
    try:
        assert (await store.take()).lanes == frozenset()
        shop.sql("UPDATE pillarbox_relays SET lease_until = 0 WHERE owner = 'other'")
        assert len((await store.take()).lanes) == 64
        assert shop.sql("SELECT owner, locked FROM pillarbox_relays") == [("here", 0)]
    finally:
        other.kill()
        await asyncio.to_thread(other.communicate)
    await store.renew(None)
    assert shop.sql("SELECT owner, locked FROM pillarbox_relays") == [("here", 1)], (
        "the lock was free, so it has it now"
    )


async def test_a_holder_without_the_lock_is_not_taken_for_dead(shop: Shop) -> None:
    hanging, second, third = await shop.holder("a"), await shop.store("b"), await shop.store("c")
    shop.clock.advance(16)
    assert (await second.take()).lanes, "took over from one that hangs with the lock"
    with pytest.raises(LaneLost):
        await hanging.entries(1)  # which lets go of the lock
    assert (await third.take()).lanes == frozenset()
    shop.clock.advance(16)
    assert (await third.take()).lanes


async def test_a_waiting_relay_writes_only_now_and_then(shop: Shop) -> None:
    await shop.holder("a")
    waiting = await shop.store("b")
    await waiting.take()
    [(before,)] = shop.sql("SELECT seen_at FROM pillarbox_relays WHERE owner = 'b'")
    shop.clock.advance(1)
    await waiting.take()
    assert shop.sql("SELECT seen_at FROM pillarbox_relays WHERE owner = 'b'") == [(before,)]
    shop.clock.advance(5)
    await waiting.take()
    assert shop.sql("SELECT seen_at - ? FROM pillarbox_relays WHERE owner = 'b'", (before,)) == [(6_000_000,)]


async def test_the_rows_of_relays_that_are_gone_do_not_pile_up(shop: Shop) -> None:
    for n in range(5):
        store = await shop.holder(f"relay-{n}")
        await store.close()
    assert shop.sql("SELECT owner FROM pillarbox_relays") == [("relay-4",)]


async def test_every_deed_of_an_operator_is_written_down(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    await settle(store, await read(store), PUBLISHED, Dead("refused"))
    await store.retry(Query(status=("dead",)))
    await store.drop(Query(ids=((await record(store, "B")).event_id,)))
    await store.replay(Query(type="A"))
    await store.pause("orders", "ada", "why not")
    await store.resume("orders")
    rows = shop.sql("SELECT what, count, who <> '' FROM pillarbox_audit ORDER BY n")
    id = (await record(store, "B")).event_id
    assert rows == [
        ("retry status=dead", 1, 1),
        (f"drop ids={id}", 1, 1),
        ("replay type=A", 1, 1),
        ("pause topic=orders", 1, 1),
        ("resume topic=orders", 1, 1),
    ]


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


async def test_many_replays_leave_room_for_what_is_new(shop: Shop) -> None:
    store = await shop.holder()
    shop.add(*(f"E{n}" for n in range(20)))
    await publish_all(store)
    await store.replay(Query())
    shop.add("New", aggregate="2")
    assert "New" in names(await store.entries(10))


async def test_an_event_replayed_twice_goes_out_twice(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await publish_all(store)
    assert [await store.replay(Query()), await store.replay(Query())] == [1, 1]
    assert await publish_all(store) == ["A", "A"]
    assert (await record(store, "A")).status == "published"


async def test_a_replay_that_fails_for_good_is_seen_and_can_be_dropped(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await publish_all(store)
    await store.prune(Retention(published=timedelta(0), archive=timedelta(days=1)))
    assert shop.sql("SELECT count(*) FROM pillarbox_outbox") == [(0,)]
    await store.replay(Query())
    await settle(store, await read(store), Dead("refused"))
    assert (await record(store, "A")).status == "dead"
    assert await store.drop(Query(status=("dead",))) == 1
    assert (await record(store, "A")).status == "published"


async def test_what_was_received_and_is_dead_is_found_retried_and_dropped(shop: Shop) -> None:
    store = await shop.store()
    shop.sql(
        "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, line, attempts, last_error, parked_at, topic,"
        " headers, body, aggregate_type, aggregate_id, event_type) VALUES"
        " ('billing', 'e1', 'dead', 'l', 6, 'no stock', 5, 'orders', '{\"content_type\": \"a/b\"}', x'00',"
        " 'order', '7', 'A'),"
        " ('billing', 'e2', 'blocked', 'l', 0, NULL, 5, 'orders', '{}', x'00', 'order', '7', 'B'),"
        " ('letters', 'e1', 'suspect', NULL, 1, NULL, 5, 'orders', '{}', x'00', 'order', '7', 'A')"
    )
    assert (await store.stats()).inbox_dead == 1
    [dead] = await store.find(Query(side="inbox", status=("dead",)))
    assert (dead.event_id, dead.consumer, dead.attempts, dead.last_error) == ("e1", "billing", 6, "no stock")
    assert (dead.content_type, dead.data, dead.aggregate) == ("a/b", b"\0", ("order", "7"))
    [behind] = await store.find(Query(side="inbox", ids=("e2",)))
    assert (behind.status, behind.blocked_by) == ("blocked", "e1")
    assert [one.status for one in await store.find(Query(side="inbox", consumer="letters"))] == ["retrying"]
    assert await store.retry(Query(side="inbox", status=("dead",))) == 1
    assert shop.sql("SELECT state, attempts FROM pillarbox_inbox_parked WHERE id = 1") == [("retrying", 0)]
    assert await store.drop(Query(side="inbox")) == 0
    assert await store.drop(Query(side="inbox", ids=("e2",), consumer="billing")) == 1
    assert shop.sql("SELECT state FROM pillarbox_inbox_parked WHERE id = 2") == [("dropped",)]


async def test_counting_what_is_pending_has_a_bound(shop: Shop) -> None:
    store = await shop.store()
    shop.add(*("E" for _ in range(10_001)))
    stats = await store.stats()
    assert (stats.pending, stats.pending_exact) == (10_000, False)


PLANS = {
    "the heads of lines": "SELECT line, min(id), state, due_at, count(*) FROM pillarbox_parked INDEXED BY"
    " pillarbox_parked_line WHERE line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead') GROUP BY line",
    "what is free and due": "SELECT id FROM pillarbox_parked INDEXED BY pillarbox_parked_free WHERE line IS NULL AND state IN ('retrying', 'delayed')"
    " AND due_at <= 5 ORDER BY due_at, id LIMIT 5",
    "the position": "SELECT last_id FROM pillarbox_ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1",
    "the last publishing": "SELECT at FROM pillarbox_ticks WHERE published > 0 ORDER BY n DESC LIMIT 1",
    "when it was published": "SELECT at FROM pillarbox_ticks WHERE topic IS NULL AND last_id >= 5"
    " ORDER BY last_id, n LIMIT 1",
    "old ticks": "SELECT last_id FROM pillarbox_ticks WHERE topic IS NULL AND at <= 5 ORDER BY at DESC, n DESC LIMIT 1",
    "a copy in the lot": "SELECT max(id) FROM pillarbox_parked WHERE position = 5",
}


@pytest.mark.parametrize("name", PLANS)
async def test_plans_use_indexes(name: str, shop: Shop) -> None:
    await shop.store()
    plan = " / ".join(row[3] for row in shop.sql(f"EXPLAIN QUERY PLAN {PLANS[name]}"))
    assert "USING" in plan, plan
    assert "INDEX" in plan, plan
    assert "TEMP B-TREE" not in plan, plan


async def statements(store: Any, work: Any) -> list[str]:
    """List the statements that run on the store's connection during some work."""
    seen: list[str] = []
    await on_connection(store, lambda db: db.set_trace_callback(seen.append))
    await work()
    await on_connection(store, lambda db: db.set_trace_callback(None))
    return seen


async def test_no_statement_of_the_relay_walks_over_a_table(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    await store.pause("letters", "ada", "why not")

    async def work() -> None:
        entries = await store.entries(2)
        await settle(store, entries, Dead("refused"))
        await store.retry(Query(status=("dead",), limit=1))
        await publish_all(store)
        await store.renew(None)

    ran = [text for text in await statements(store, work) if text.split()[0] in ("SELECT", "WITH", "UPDATE", "DELETE")]
    assert len(ran) > 20
    for text in ran:
        plan = [row[3] for row in shop.sql(f"EXPLAIN QUERY PLAN {text}")]
        walked = [step for step in plan if step.startswith("SCAN") and "pillarbox_" in step and "INDEX" not in step]
        assert not [step for step in walked if "pauses" not in step], text  # all pauses are wanted


async def test_ticks_are_thinned_and_the_newest_stays(shop: Shop) -> None:
    store = await shop.holder()
    for n in range(10):
        shop.add(f"E{n}")
        await publish_all(store)
        shop.clock.advance(0.25)
    shop.clock.advance(120)
    before = await record(store, "E3")
    await store.prune(Retention(published=None))
    rows = shop.sql("SELECT last_id, published FROM pillarbox_ticks WHERE owner = 'a' ORDER BY n")
    assert rows == [(4, 4), (8, 4), (10, 2)], "one a second, with the counts of all"
    after = await record(store, "E3")
    assert before.published_at == after.published_at
    assert (await record(store, "E0")).published_at == before.published_at, "exact to a second"


async def test_thinning_keeps_the_position_although_the_clock_stepped_back(shop: Shop) -> None:
    store = await shop.holder()
    shop.clock.advance(0.9)
    shop.add("A")
    await publish_all(store)
    shop.clock.advance(-0.5)
    shop.add("B")
    await publish_all(store)
    shop.clock.advance(120)
    await store.prune(Retention(published=timedelta(0)))
    await store.close()
    assert await read(await shop.holder("b")) == []


async def test_ticks_are_pruned_with_the_log(shop: Shop) -> None:
    store = await shop.holder()
    for n in range(5):
        shop.add(f"E{n}")
        await publish_all(store)
        shop.clock.advance(3600)
    while await store.prune(Retention(published=timedelta(0))):
        pass
    assert shop.sql("SELECT last_id FROM pillarbox_ticks") == [(5,)]


async def test_the_other_tables_are_pruned_too(shop: Shop) -> None:
    store = await shop.holder()
    shop.sql("INSERT INTO pillarbox_inbox (consumer, event_id, handled_at) VALUES ('b', 'old', 5), ('b', 'new', 1e16)")
    shop.sql("INSERT INTO pillarbox_keys (key, event_id, created_at) VALUES ('old', 'e', 5), ('new', 'e', 1e16)")
    await store.prune(Retention())
    assert shop.sql("SELECT event_id FROM pillarbox_inbox") == [("new",)]
    assert shop.sql("SELECT key FROM pillarbox_keys") == [("new",)]


async def test_a_dropped_event_is_never_taken_for_published_by_pruning(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await settle(store, await read(store), Dead("refused"))
    shop.clock.advance(3600)
    await store.drop(Query(status=("dead",)))
    week = timedelta(days=7)
    await store.prune(Retention(published=timedelta(minutes=1), archive=week))
    assert (await record(store, "A")).status == "dropped", "it was dropped just now"
    shop.clock.advance(3600)
    await store.prune(Retention(published=timedelta(minutes=1), archive=week))
    assert shop.sql("SELECT count(*) FROM pillarbox_outbox") == [(0,)]
    assert (await record(store, "A")).status == "dropped"


async def test_a_batch_of_pruning_is_bounded(shop: Shop) -> None:
    store = await shop.holder()
    shop.add(*("E" for _ in range(5_100)))
    await publish_all(store)
    now = Retention(published=timedelta(0))
    await store.prune(now)
    assert shop.sql("SELECT count(*) FROM pillarbox_outbox") == [(100,)]


async def test_a_detour_that_closed_ahead_of_the_position_repeats_nothing_of_its_topic(shop: Shop) -> None:
    store = await closed_ahead(shop)
    await store.close()
    assert await publish_all(await shop.holder("b")) == ["X"]


async def test_what_comes_behind_a_detour_that_closed_ahead_is_not_lost(shop: Shop) -> None:
    store = await closed_ahead(shop)
    shop.add("B")
    assert names(await read(store)) == ["B"], "on the main line again, and not settled"
    await store.close()
    store = await shop.holder("b")
    await store.pause("orders", "ada", "again")
    shop.add("Y", topic="invoices")
    assert await publish_all(store) == ["X", "Y"]
    await store.close()
    store = await shop.holder("c")
    await store.resume("orders")
    assert await publish_all(store) == ["B"]


async def closed_ahead(shop: Shop) -> Any:
    """Give a store whose detour closed while an entry before that place is still in flight."""
    store = await shop.holder("a")
    await store.pause("orders", "ada", "why not")
    shop.add("A")
    shop.add("X", topic="invoices")
    assert names(await read(store)) == ["X"]
    await store.resume("orders")
    detour = await store.entries(10)
    assert names(detour) == ["A"]
    await settle(store, detour)
    assert await read(store) == []
    assert shop.sql("SELECT opened, closed, last_id FROM pillarbox_ticks WHERE topic = 'orders' ORDER BY n") == [
        (1, 0, 0),
        (0, 0, 2),
        (0, 1, 2),
    ]
    assert shop.sql("SELECT max(last_id) FROM pillarbox_ticks WHERE topic IS NULL") == [(0,)]
    return store


async def test_a_pause_takes_effect_only_when_all_that_was_given_out_is_settled(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    shop.add("X", topic="invoices")
    entries = await store.entries(1)
    await store.pause("orders", "ada", "why not")
    assert await read(store) == []
    assert shop.sql("SELECT count(*) FROM pillarbox_ticks WHERE topic = 'orders'") == [(0,)]
    await settle(store, entries)
    assert names(await read(store)) == ["X"]
    assert shop.sql("SELECT last_id, opened FROM pillarbox_ticks WHERE topic = 'orders'") == [(1, 1)]


async def test_the_main_line_does_not_walk_over_a_paused_backlog_again_and_again(shop: Shop) -> None:
    store = await shop.holder()
    await store.pause("orders", "ada", "why not")
    shop.add(*("E" for _ in range(1000)))
    await read(store)

    async def poll() -> None:
        assert await store.entries(10) == []

    [main] = [text for text in await statements(store, poll) if "pillarbox_outbox WHERE id >" in text]
    assert "id > 1000 " in main

"""What an operator sees and does on SQLite, beyond the contract: replays, the inbox's side, bounds."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.core.retry import Dead
from pillarbox.ports import Query, Retention
from pillarbox.testing.contracts.store_bench import names, publish_all, read, record, replayed, settle
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


async def test_many_replays_leave_room_for_what_is_new(shop: Shop) -> None:
    store = await shop.holder()
    shop.add(*(f"E{n}" for n in range(20)))
    await publish_all(store)
    await replayed(store, Query())
    shop.add("New", aggregate="2")
    assert "New" in names(await store.entries(10))


async def test_more_than_a_batch_is_replayed_in_order_and_no_more_than_was_asked_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.stores.replays.BATCH", 3)
    monkeypatch.setattr("pillarbox.stores.sqlite.replaying.WALK", 2)
    store = await shop.holder()
    shop.add(*(f"E{n}" for n in range(4)))
    await publish_all(store)
    await store.prune(Retention(published=timedelta(0), archive=timedelta(days=1)))
    shop.add(*(f"E{n}" for n in range(4, 8)))
    await publish_all(store)
    for limit, count in ((1_000_000, 8), (7, 7), (6, 6), (2, 2)):
        assert await replayed(store, Query(limit=limit), f"replay-{limit}") == count
        assert await publish_all(store) == [f"E{n}" for n in range(count)]


async def test_an_event_replayed_twice_goes_out_twice(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await publish_all(store)
    assert [await replayed(store, Query(), id) for id in ("replay-1", "replay-2")] == [1, 1]
    assert await publish_all(store) == ["A", "A"]
    assert (await record(store, "A")).status == "published"


async def test_a_replay_that_fails_for_good_is_seen_and_can_be_dropped(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await publish_all(store)
    await store.prune(Retention(published=timedelta(0), archive=timedelta(days=1)))
    assert shop.sql("SELECT count(*) FROM pillarbox_outbox") == [(0,)]
    await replayed(store, Query())
    await settle(store, await read(store), Dead("refused"))
    assert (await record(store, "A")).status == "dead"
    assert await store.drop(Query(status=("dead",))) == 1
    assert (await record(store, "A")).status == "published"


async def test_what_was_received_and_is_dead_is_found_retried_and_dropped(shop: Shop) -> None:
    store = await shop.store()
    shop.sql(
        "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, line, attempts, last_error, parked_at, topic,"
        " headers, body, aggregate_type, aggregate_id, event_type, number) VALUES"
        " ('billing', 'e1', 'dead', 'l', 6, 'no stock', 5, 'orders', '{\"content_type\": \"a/b\"}', x'00',"
        " 'order', '7', 'A', 3),"
        " ('billing', 'e2', 'blocked', 'l', 0, NULL, 5, 'orders', '{}', x'00', 'order', '7', 'B', 4),"
        " ('letters', 'e1', 'suspect', NULL, 1, NULL, 5, 'orders', '{}', x'00', 'order', '7', 'A', NULL)"
    )
    assert (await store.stats()).inbox_dead == 1
    [dead] = await store.find(Query(side="inbox", status=("dead",)))
    assert [one.event_id for one in await store.find(Query(side="inbox", error="stock"))] == ["e1"]
    [group] = await store.group_dead(Query(side="inbox", consumer="billing"))
    assert (group.error, group.events, group.example) == ((dead.last_error or "").partition("\n")[0], 1, dead.event_id)
    assert await store.group_dead(Query(side="inbox", consumer="letters")) == []
    assert (dead.event_id, dead.consumer, dead.attempts, dead.last_error) == ("e1", "billing", 6, "no stock")
    assert (dead.content_type, dead.data, dead.aggregate, dead.number) == ("a/b", b"\0", ("order", "7"), 3)
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

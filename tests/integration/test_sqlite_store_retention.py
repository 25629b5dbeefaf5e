"""Retention on SQLite: ticks are thinned and pruned with the log, every other table has its turn."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.core.retry import Dead
from pillarbox.ports import Query, Retention
from pillarbox.testing.contracts.store_bench import publish_all, read, record, settle
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


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

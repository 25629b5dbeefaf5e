"""Detours on SQLite, seen from inside: when they open, where they close, and what a crash finds."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import DETOURED
from pillarbox.testing.contracts.store_bench import names, publish_all, read, settle, settle_each
from tests.integration.sqlite_shop import Shop, statements


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


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


async def test_what_goes_back_opens_a_detour_before_it_in_the_same_transaction(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    shop.add("X", topic="invoices")
    shop.add("B")
    entries = await read(store)
    await settle(store, entries[:1])
    store.hold(frozenset({"orders"}))
    await settle_each(store, entries[1:], X=PUBLISHED, B=DETOURED)
    assert shop.sql("SELECT topic, last_id, opened FROM pillarbox_ticks WHERE n > 2 ORDER BY n") == [
        ("orders", 2, 1),
        (None, 3, 0),
    ]


async def test_what_went_back_is_not_read_before_what_is_in_flight_behind_it_is_settled(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    shop.add("X", topic="invoices")
    first, *rest = await read(store)
    store.hold(frozenset({"orders"}))
    await settle_each(store, [first], A=DETOURED)
    store.hold(frozenset())
    assert await read(store) == [], "B may still come back unpublished, and would come out twice"
    await settle_each(store, rest, B=DETOURED, X=PUBLISHED)
    assert await publish_all(store) == ["A", "B"]


async def test_what_is_refused_when_its_topic_is_tried_is_parked_once(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    shop.add("B", aggregate="2")
    entries = await read(store)
    store.hold(frozenset({"orders"}))
    await settle_each(store, entries, A=DETOURED, B=DETOURED)
    store.hold(frozenset())
    tried = await read(store)
    store.hold(frozenset({"orders"}))
    await settle_each(store, tried, A=Dead("too large"), B=DETOURED)
    store.hold(frozenset())
    assert await publish_all(store) == ["B"]
    assert shop.sql("SELECT event_type, state FROM pillarbox_parked") == [("A", "dead")]
    await store.close()
    assert await publish_all(await shop.holder("b")) == []

"""A topic's order changes while events of it are parked on SQLite: refused when the lanes are taken, with the cure."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.retry import Dead
from pillarbox.core.routing import Topic, Topics
from pillarbox.core.window import Settlement
from pillarbox.errors import ConfigError
from pillarbox.ports import Query
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


async def park(shop: Shop, order: Any) -> None:
    """Let a relay with this order park an event, and go."""
    store = await shop.store("old", topics=Topics({"orders": Topic(order=order)}))
    shop.add("First")
    await store.take()
    await store.settle([Settlement(entry, Dead("no such queue")) for entry in await store.entries(10)])
    await store.release()


@pytest.mark.parametrize(("before", "now"), [("aggregate", "global"), ("global", "aggregate")])
async def test_another_order_is_refused_while_events_are_parked_in_the_old_one(
    shop: Shop, before: Any, now: Any
) -> None:
    await park(shop, before)
    store = await shop.store("new", topics=Topics({"orders": Topic(order=now)}))
    words = (
        rf"topic\.orders\.order: it is '{now}' now, but 1 event stands parked in the order '{before}'.*"
        "`pillarbox dead retry --topic orders`"
    )
    with pytest.raises(ConfigError, match=words):
        await store.take()
    back = await shop.store("back", topics=Topics({"orders": Topic(order=before)}))
    assert (await back.take()).lanes, "the one that was refused holds nothing"
    await back.release()
    await back.drop(Query(topic="orders"))
    assert (await store.take()).lanes


@pytest.mark.parametrize(("before", "now"), [("aggregate", "none"), ("aggregate", "aggregate"), ("global", "global")])
async def test_the_same_order_and_none_at_all_are_welcome(shop: Shop, before: Any, now: Any) -> None:
    await park(shop, before)
    store = await shop.store("new", topics=Topics({"orders": Topic(order=now)}))
    assert (await store.take()).lanes

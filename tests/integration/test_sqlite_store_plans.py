"""The plans of the statements that the SQLite store really runs: by index, whatever the tables hold."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.ports import NEWEST, Query, Retention, Side
from pillarbox.testing.contracts.store_bench import publish_all, settle
from tests.integration.sqlite_shop import Shop, statements


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


async def plans(store: Any, shop: Shop, work: Any) -> list[tuple[str, str]]:
    """List the steps of the plans of all statements that run on the store's connection during some work."""
    ran = await statements(store, work)
    looking = [text for text in ran if text.split()[0] in ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT")]
    return [(step[3], text) for text in looking for step in shop.sql(f"EXPLAIN QUERY PLAN {text}")]


def walks(step: str) -> bool:
    """Tell whether a step reads a whole table that grows."""
    grows = any(
        table in step.split() for table in ("pillarbox_outbox", "o", "it", "pillarbox_ticks", "pillarbox_parked")
    )
    return step.startswith("SCAN") and grows and "INDEX" not in step


async def test_the_relay_reads_and_settles_by_index_and_sorts_nothing(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    await store.pause("letters", "ada", "why not")
    await store.entries(0)  # opens the detour, so that everything is read around it

    async def work() -> None:
        await settle(store, await store.entries(2), Dead("refused"))
        await publish_all(store)
        await store.renew(None)

    steps = await plans(store, shop, work)
    assert len(steps) > 30
    assert [(step, text) for step, text in steps if walks(step) or "TEMP B-TREE" in step] == []


async def test_an_operator_finds_and_counts_by_index(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C", "D")
    await settle(store, await store.entries(3), PUBLISHED, Dead("refused"))

    async def work() -> None:
        await store.stats()
        for query in (
            Query(ids=("x",)),
            Query(topic="orders"),
            Query(aggregate=("order", "1")),
            Query(status=("dead",)),
            Query(status=("pending",)),
        ):
            await store.find(query)

    steps = await plans(store, shop, work)
    assert len(steps) > 20
    newest = f"ORDER BY id DESC LIMIT {NEWEST}"  # from the end of the table, and no further
    assert [(step, text) for step, text in steps if walks(step) and "archive" not in text and newest not in text] == []


@pytest.mark.parametrize("side", ["outbox", "inbox"])
async def test_dead_events_are_grouped_without_a_look_at_the_log(shop: Shop, side: Side) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C", "D")
    await settle(store, await store.entries(3), PUBLISHED, Dead("refused"))

    async def work() -> None:
        await store.group_dead(Query(side=side, type="B", topic="orders"))

    steps = await plans(store, shop, work)
    assert any("USING INDEX pillarbox_" in step for step, _ in steps)
    assert [(step, text) for step, text in steps if walks(step) or "outbox" in text or "archive" in text] == []


async def test_pruning_goes_by_index(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C")
    await publish_all(store)

    async def work() -> None:
        await store.prune(Retention(published=timedelta(0), archive=timedelta(days=1)))

    steps = await plans(store, shop, work)
    assert len(steps) > 10
    assert [(step, text) for step, text in steps if walks(step) or "TEMP B-TREE" in step] == []

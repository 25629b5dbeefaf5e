"""The plans of the statements that the SQLite store really runs: by index, whatever the tables hold."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Settings
from pillarbox.admin.admin import Admin
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.ports import NEWEST, Query, Retention, Side
from pillarbox.testing.contracts.store_bench import publish_all, settle
from tests.integration.sqlite_shop import Shop, on_connection, statements


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
    """Tell whether a step reads a whole table that grows, or a whole index of it, which a count prefers."""
    grows = any(
        table in step.split() for table in ("pillarbox_outbox", "o", "it", "pillarbox_ticks", "pillarbox_parked")
    )
    return step.startswith("SCAN") and grows


FROM_THE_END = (
    f"FROM pillarbox_outbox ORDER BY id DESC LIMIT {NEWEST}",
    "FROM pillarbox_ticks WHERE published > 0 ORDER BY n DESC LIMIT 1",
)
"""How statements end that read from the end of a table, and no further."""
AT_AN_END = re.compile(
    r"FROM pillarbox_outbox o WHERE TRUE\).* WHERE \(TRUE\) AND \(TRUE\) ORDER BY id (DESC)? LIMIT 1"
)
"""Looks for the first or the last event, whichever it is."""


def unbounded(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Choose the steps that walk over the log, or over its ticks; the archive is nobody's hot path."""
    return [
        (step, text)
        for step, text in steps
        if walks(step)
        and not (text.endswith(FROM_THE_END) or AT_AN_END.search(text))
        and not ("pillarbox_archive" in text and "pillarbox_outbox" not in text)
    ]


@pytest.mark.parametrize("where", ["", " WHERE topic <> 'x'", " ORDER BY id DESC LIMIT 1"])
async def test_a_count_over_the_log_would_be_seen(shop: Shop, where: str) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    count = f"SELECT count(*) FROM pillarbox_outbox{where}"

    async def work() -> None:
        await on_connection(store, lambda db: db.execute(count).fetchall())

    assert [text for _, text in unbounded(await plans(store, shop, work))] == [count]


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
        admin = Admin(store, "ada", shop.clock)
        await admin.report(Settings())
        for query in (Query(type="B"), Query(since=shop.clock.now()), Query(status=("published",), newest_first=False)):
            await admin.look_for(query)
            await admin.count(query)

    steps = await plans(store, shop, work)
    assert len(steps) > 20
    assert unbounded(steps) == []


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

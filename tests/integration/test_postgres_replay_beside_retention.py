"""A replay beside retention on PostgreSQL: what is copied stays, so that a copy that dies can be found."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pillarbox.core.retry import Dead
from pillarbox.ports import Query, Retention
from pillarbox.stores.postgres import PostgresStore
from tests.integration.postgres_bench import Bench, opened, publish, settle, until

AT_ONCE = Retention(published=timedelta(0))
WAITS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


async def shop(bench: Bench) -> PostgresStore:
    """Have one published event, and a replay of it that has not copied it yet."""
    store = await bench.holder()
    bench.add("A")
    assert await publish(store) == ["A"]
    await store.begin_replay("r1", Query(limit=10))
    return store


async def is_found(store: PostgresStore) -> bool:
    """Let every copy die; say whether all that is counted can be found."""
    await settle(store, await store.entries(10), Dead("refused"))
    dead = await store.find(Query(status=("dead",)))
    return (await store.stats()).dead == len(dead)


async def test_a_replay_that_comes_while_retention_deletes_copies_nothing_of_it(bench: Bench) -> None:
    store = await shop(bench)
    pruner = bench.begin()
    pruner.execute("SELECT pillarbox_prune('0', '0', '30 days', 5000, 100000)")
    replaying = asyncio.create_task(store.replay("r1"))
    await until(bench, WAITS)
    pruner.commit()
    replay = await replaying
    assert replay is not None
    assert replay.events == 0
    assert await is_found(store)


async def test_a_replay_that_comes_while_retention_archives_copies_from_the_archive(bench: Bench) -> None:
    store = await shop(bench)
    pruner = bench.begin()
    pruner.execute("SELECT pillarbox_prune('0', '7 days', '30 days', 5000, 100000)")
    replaying = asyncio.create_task(store.replay("r1"))
    await until(bench, WAITS)
    pruner.commit()
    replay = await replaying
    assert replay is not None
    assert replay.events == 1
    assert await is_found(store)


async def test_retention_that_comes_while_a_replay_copies_deletes_nothing_of_it(bench: Bench) -> None:
    store = await shop(bench)
    auditor = bench.begin()
    auditor.execute("SELECT 1 FROM pillarbox_audit FOR UPDATE")
    replaying = asyncio.create_task(store.replay("r1"))
    await until(bench, WAITS)
    pruning = await bench.store("pruner")
    await pruning.prune(AT_ONCE)
    auditor.commit()
    replay = await replaying
    assert replay is not None
    assert replay.events == 1
    await pruning.prune(AT_ONCE)
    assert await is_found(store)

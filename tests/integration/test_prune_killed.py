"""A prune that is killed at random moments, beside a relay at work: what is pending, retrying, blocked or dead
stays. On PostgreSQL transactions that began before commit after it, a pruner's backend ends in mid-work, and one
archives before it deletes."""

import asyncio
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pillarbox.core.retry import PUBLISHED, Dead, RetryAt
from pillarbox.core.window import BLOCKED, Settled
from pillarbox.ports import Query, Status
from pillarbox.testing.contracts.store_bench import event, found, read, settle_each
from pillarbox.testing.contracts.store_bench import names as types
from tests.conftest import EVERY_POSTGRES
from tests.contracts.test_store_postgres import PostgresBench
from tests.contracts.test_store_sqlite import SqliteBench
from tests.integration.postgres_pruner import AT_ONCE
from tests.integration.postgres_world import until

if TYPE_CHECKING:
    from pillarbox.ports import Store

KILLS = 3
LOSES_ITS_BACKEND, ARCHIVES = 1, 2
"""Which pruners do."""
KEPT: tuple[Status, ...] = ("pending", "retrying", "blocked", "dead")


async def load(store: "Store", bench: SqliteBench | PostgresBench, round: str) -> list[str]:
    """Add events of every fate, and settle all but the pending one; that of the round before is published, as is
    whatever else comes out. Give the names of what did."""
    names = ("published", "dead", "blocked", "retrying")
    of = {"published": "p", "dead": "d", "blocked": "d", "retrying": "r"}
    await bench.add(*(event(f"{round} {name}", f"{round} {of[name]}") for name in names))
    later = RetryAt(bench.clock.now() + timedelta(days=1), "not now")
    fates: dict[str, Settled] = {"published": PUBLISHED, "dead": Dead("refused"), "blocked": BLOCKED, "retrying": later}
    verdicts: dict[str, Settled] = {f"{round} {name}": fate for name, fate in fates.items()}
    entries = await read(store)
    await settle_each(store, entries, **dict.fromkeys(types(entries), PUBLISHED) | verdicts)
    await bench.add(event(f"{round} pending", f"{round} w"))
    return types(entries)


@pytest.fixture
def seed() -> int:
    """Give another one each time, or PILLARBOX_PRUNE_SEED. It chooses what is added before each kill; where exactly
    that finds the pruner, the machine chooses."""
    return int(os.environ.get("PILLARBOX_PRUNE_SEED") or secrets.randbelow(1_000_000))


async def prunes_and_dies(store: "Store", bench: SqliteBench | PostgresBench, url: str, seed: int) -> None:
    print(f"to repeat it: PILLARBOX_PRUNE_SEED={seed}")
    chance = random.Random(seed)
    await store.take()
    added: list[str] = []
    held: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    for kill in range(KILLS):
        command = [sys.executable, "-m", "tests.integration.postgres_pruner", url]
        if isinstance(bench, PostgresBench):  # where a pruner goes by the bench's clock, too
            command += ["archive"] * (kill == ARCHIVES)
            held.append((f"{kill}.late", await bench.begin(event(f"{kill}.late", f"{kill} l"))))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pruner:  # noqa: ASYNC220 - nothing else runs
            try:
                assert pruner.stdout is not None
                assert pruner.stdout.readline().strip().isdigit(), "it is at work"
                for n in range(chance.randrange(1, 8)):
                    added.append(f"{kill}.{n}")
                    await load(store, bench, added[-1])
                if kill == LOSES_ITS_BACKEND and isinstance(bench, PostgresBench):
                    await asyncio.to_thread(end_at_work, url)
            finally:
                pruner.kill()
        await all_are_there(store, added)
        if kill:  # they began before the last kill or the one before, and so many events ago
            added += await comes_out_late(store, bench, held, f"{kill}.after")
    while held:
        added += await comes_out_late(store, bench, held, f"{len(held)} at last")
    await prune_all(store)
    await all_are_there(store, added)


async def prune_all(store: "Store") -> None:
    """Delete all that is settled. A server goes on with the batch of a pruner that was killed, and who finds another at
    it does nothing."""
    async with asyncio.timeout(60):
        while await found(store, Query(status=("published",))):
            if not await store.prune(AT_ONCE):
                await asyncio.sleep(0.05)


async def comes_out_late(
    store: "Store",
    bench: SqliteBench | PostgresBench,
    held: list[tuple[str, Callable[[], Awaitable[None]]]],
    round: str,
) -> list[str]:
    """Commit what was held open the longest: it is pending, and then published, whatever was pruned meanwhile."""
    if not held:
        return []
    late, commit = held.pop(0)
    await commit()
    await prune_all(store)
    assert late in await found(store, Query(status=("pending",)))
    assert late in await load(store, bench, round)
    assert late not in await found(store, Query(status=KEPT, limit=1000))
    return [round]


def end_at_work(url: str) -> None:
    """End the backend of a pruner that has deleted, and is held up before it commits."""
    with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as looking:
        connection.execute("LOCK TABLE pillarbox_keys IN SHARE MODE")
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database() AND query LIKE '%prune(%'"
        )
        until(lambda: looking.execute(ended).fetchall() != [], "a pruner is at work")


async def all_are_there(store: "Store", added: list[str]) -> None:
    for status in KEPT:
        kept = await found(store, Query(status=(status,), newest_first=False, limit=1000))
        rounds = added[-1:] if status == "pending" else added
        assert kept == [f"{round} {status}" for round in rounds], status


async def test_what_is_not_settled_stays_on_sqlite(tmp_path: Path, seed: int) -> None:
    bench = SqliteBench(tmp_path)
    try:
        await prunes_and_dies(await bench.store(), bench, f"sqlite:///{bench.path}", seed)
    finally:
        await bench.close()


@pytest.mark.parametrize("migrated", EVERY_POSTGRES, indirect=True)
async def test_what_is_not_settled_stays_on_postgresql(migrated: str, seed: int) -> None:
    bench = PostgresBench(migrated)
    try:
        await prunes_and_dies(await bench.store(), bench, migrated, seed)
    finally:
        await bench.close()

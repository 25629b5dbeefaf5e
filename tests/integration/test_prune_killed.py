"""A prune that is killed at random moments, beside a relay at work: what is pending, retrying, blocked or dead
stays."""

import asyncio
import os
import random
import secrets
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from pillarbox.ports import Store

KILLS = 3
KEPT: tuple[Status, ...] = ("pending", "retrying", "blocked", "dead")


async def load(store: "Store", bench: SqliteBench | PostgresBench, round: str) -> None:
    """Add events of every fate, and settle all but the pending one; that of the round before is published."""
    names = ("published", "dead", "blocked", "retrying")
    of = {"published": "p", "dead": "d", "blocked": "d", "retrying": "r"}
    await bench.add(*(event(f"{round} {name}", f"{round} {of[name]}") for name in names))
    later = RetryAt(bench.clock.now() + timedelta(days=1), "not now")
    fates: dict[str, Settled] = {"published": PUBLISHED, "dead": Dead("refused"), "blocked": BLOCKED, "retrying": later}
    verdicts: dict[str, Settled] = {f"{round} {name}": fate for name, fate in fates.items()}
    entries = await read(store)
    await settle_each(store, entries, **dict.fromkeys(types(entries), PUBLISHED) | verdicts)
    await bench.add(event(f"{round} pending", f"{round} w"))


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
    for kill in range(KILLS):
        command = [sys.executable, "-m", "tests.integration.postgres_pruner", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pruner:  # noqa: ASYNC220 - nothing else runs
            try:
                assert pruner.stdout is not None
                assert pruner.stdout.readline().strip().isdigit(), "it is at work"
                for n in range(chance.randrange(1, 8)):
                    added.append(f"{kill}.{n}")
                    await load(store, bench, added[-1])
            finally:
                pruner.kill()
        await all_are_there(store, added)
    # A server goes on with the batch of the one that was killed, and who finds another at it does nothing.
    async with asyncio.timeout(60):
        while await found(store, Query(status=("published",))):
            if not await store.prune(AT_ONCE):
                await asyncio.sleep(0.05)
    await all_are_there(store, added)


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

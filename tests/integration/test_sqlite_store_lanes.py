"""Lanes on SQLite with real processes: kill -9, SIGSTOP, the kernel's lock and the rows of relays."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pillarbox.errors import LaneLost
from pillarbox.testing.contracts.store_bench import names, read
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


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

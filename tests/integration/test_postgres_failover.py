"""Failover to a standby: what the new primary has is published in order; only an asynchronous one leaves phantoms."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.message import Message
from pillarbox.errors import LaneLost
from pillarbox.settings import RelaySettings, Settings
from pillarbox.stores.postgres.connection import Connection
from pillarbox.wiring import Relay
from servers.postgres import Postgres
from servers.postgres_pair import Pair
from tests.conftest import EVERY_POSTGRES, installed, skip_unless_ours
from tests.integration.postgres_world import (
    MEMORY_UNCHECKED,
    NOT_SYNCHRONOUS,
    QUIET,
    TOKENS_UNCHECKED,
    Mutant,
    SlowRelay,
    add,
    burn,
    logged,
    migrate,
    new_database,
    next_xid,
    run,
    soon,
    until,
)

OLD = [f"old-{n}" for n in range(1, 9)]
NEW = [f"new-{n}" for n in range(1, 9)]


@pytest.fixture(scope="module", params=EVERY_POSTGRES)
def primary(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A primary that is killed in every test."""
    skip_unless_ours()
    with installed(lambda: Postgres(request.param, settings=QUIET)) as primary:
        yield primary


@pytest.fixture
async def pair(primary: Postgres) -> AsyncIterator[Pair]:
    """The primary with a standby of its own, an empty outbox on both."""
    if not primary.server.running:
        primary.start()
    name = new_database(primary)
    await migrate(primary.url(name))
    pair = Pair(primary, name)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


async def asleep_over_a_failover(pair: Pair, url: str, mutant: Mutant | None = None) -> SlowRelay:
    """Let a relay publish what only the old primary has, fall asleep, and wake on the new one, where the same
    transaction ids come again."""
    async with SlowRelay(url) as relay:
        await relay.store.take()
        add(pair.old, "both")
        await relay.carry()
        if mutant is not None:
            mutant.install(pair.old)
        pair.part()
        add(pair.old, *OLD)
        burn(pair.old, 40)
        add(pair.old, "last")
        await relay.carry()
        reached = next_xid(pair.old)
        pair.fail_over()
        add(pair.new, *NEW)
        assert next_xid(pair.new) < reached, "no transaction id came again, so the test could not fail"
        await relay.carry()
        return relay


@pytest.mark.parametrize("way", ["pooled", "direct"])
async def test_a_relay_that_sleeps_over_a_failover_publishes_what_the_new_primary_gets(pair: Pair, way: str) -> None:
    relay = await asleep_over_a_failover(pair, getattr(pair, way))
    phantoms = [*OLD, "last"]
    assert list(dict.fromkeys(relay.wire)) == ["both", *phantoms, *NEW]
    assert logged(pair.new) == ["both", *NEW], "the phantoms are those that only the old primary had"


async def test_memory_that_is_not_checked_would_swallow_them(pair: Pair) -> None:
    relay = await asleep_over_a_failover(pair, pair.pooled, MEMORY_UNCHECKED)
    assert not set(NEW) & set(relay.wire)


async def over_a_failover_with_the_same_tick_numbers(pair: Pair, mutant: Mutant | None = None) -> list[str]:
    """Let the new primary give others the numbers of ticks that a relay remembers from the old one."""
    async with SlowRelay(pair.pooled) as relay:
        await relay.store.take()
        add(pair.old, "both")
        await relay.carry()
        if mutant is not None:
            mutant.install(pair.old)
        pair.part()
        for n in range(40):  # a sequence is logged 32 numbers ahead, and the standby has those
            add(pair.old, f"old-{n}")
            await relay.carry()
        burn(pair.old, 40)
        add(pair.old, "last")
        await relay.carry()
        [[remembered]] = run(pair.old, "SELECT max(n) FROM pillarbox_ticks")
        relay.wire.clear()
        pair.fail_over()
        add(pair.new, *NEW)
        [[n]] = run(pair.new, "SELECT max(n) FROM pillarbox_ticks")
        while n < remembered:
            n = write_the_same_position_again(pair.new)
        assert n == remembered, "the numbers have not come again, so the test could not fail"
        await relay.carry()
        return relay.wire


def write_the_same_position_again(url: str) -> int:
    """Write a tick that says what the newest one says, as any relay may; give its number."""
    columns = "owner, lanes, s1, x1, m1, s2, x2, m2, last_id, floor_id, cluster"
    [[n]] = run(
        url,
        f"INSERT INTO pillarbox_ticks (token, {columns})"
        f" SELECT gen_random_uuid(), {columns} FROM pillarbox_ticks ORDER BY n DESC LIMIT 1 RETURNING n",
    )
    return int(n)


async def test_a_tick_of_the_same_number_is_not_taken_for_the_one_that_was_lost(pair: Pair) -> None:
    assert [name for name in await over_a_failover_with_the_same_tick_numbers(pair) if name in NEW] == NEW


async def test_numbers_without_tokens_would_swallow_events(pair: Pair) -> None:
    assert not set(NEW) & set(await over_a_failover_with_the_same_tick_numbers(pair, TOKENS_UNCHECKED))


async def failing_over_in_mid_batch(pair: Pair, mutant: Mutant | None = None) -> list[str]:
    """Fail over when five of eight are published; the new primary gives the same ids and xids to others."""
    async with SlowRelay(pair.pooled) as relay:
        await relay.store.take()
        if mutant is not None:
            mutant.install(pair.old)
        pair.part()
        add(pair.old, *OLD)
        burn(pair.old, 40)
        add(pair.old, "last")
        begun = await relay.read(5)
        relay.publish(begun)
        assert [entry.position for entry in begun] == [1, 2, 3, 4, 5]
        relay.wire.clear()
        pair.fail_over()
        add(pair.new, *NEW)
        assert run(pair.new, "SELECT min(id), max(id) FROM pillarbox_outbox") == [(1, 8)]
        try:
            relay.publish(await relay.read())
            await relay.settle(begun)
        except LaneLost:
            await relay.carry()
        return relay.wire


async def test_a_failover_in_mid_batch_keeps_the_order(pair: Pair) -> None:
    assert await failing_over_in_mid_batch(pair) == NEW


async def test_a_chunk_that_is_read_unchecked_would_come_before_its_predecessors(pair: Pair) -> None:
    assert (await failing_over_in_mid_batch(pair, MEMORY_UNCHECKED))[:3] == NEW[5:8]


@pytest.mark.parametrize("way", ["pooled", "direct"])
async def test_a_relay_that_publishes_over_a_failover_goes_on_by_itself(pair: Pair, way: str) -> None:
    wire: list[str] = []
    calling, may_return = asyncio.Event(), asyncio.Event()

    async def publish(messages: list[Message]) -> None:
        calling.set()
        await may_return.wait()
        wire.extend(message.headers["type"] for message in messages)

    relay = Relay(Settings(relay=RelaySettings(batch=4)), database=getattr(pair, way), publish=publish)
    running = asyncio.create_task(relay.run())
    try:
        add(pair.old, *OLD[:4])
        pair.part()
        add(pair.old, *OLD[4:])
        await asyncio.wait_for(calling.wait(), 10)
        pair.fail_over()
        add(pair.new, *NEW)
        may_return.set()
        await soon(lambda: {*OLD[:4], *NEW} <= set(wire), "the relay has found the new primary")
        firsts = list(dict.fromkeys(wire))
        assert [name for name in firsts if name in logged(pair.new)] == logged(pair.new) == [*OLD[:4], *NEW]
        assert set(firsts) - set(logged(pair.new)) <= set(OLD[4:]), "phantoms that nobody committed"
    finally:
        relay.stop()
        await running


# A synchronous standby: a tick waits for it, so nothing is published that it does not have


@pytest.fixture
async def synchronous(pair: Pair) -> AsyncIterator[Pair]:
    """The same, with a primary whose durable commits wait for the standby."""
    pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.execute("SELECT pg_reload_conf()")
    state = "SELECT sync_state FROM pg_stat_replication"
    until(lambda: pair.primary.execute(state) == [("sync",)], "the standby is synchronous")
    yield pair
    pair.primary.kill()
    with (pair.primary.data / "postgresql.auto.conf").open("a") as file:
        file.write("synchronous_standby_names = ''\n")


async def reading_what_the_standby_lacks(pair: Pair, relay: SlowRelay) -> asyncio.Task[Sequence[Entry]]:
    """Let a relay read what its writer committed without waiting; it has it, or waits for the standby."""
    pair.part()
    add(pair.old, *OLD, durably=False)
    reading = asyncio.create_task(relay.read())
    await soon(lambda: reading.done() or bool(waiting_for_the_standby(pair.old)), "it has read, or waits")
    return reading


def waiting_for_the_standby(url: str) -> list[int]:
    rows = run(url, "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return [pid for (pid,) in rows]


async def published_before_the_standby_has_it(pair: Pair, mutant: Mutant | None = None) -> list[str]:
    """Fail over while the standby lags; give what was published before."""
    async with SlowRelay(pair.pooled) as relay:
        await relay.store.take()
        if mutant is not None:
            mutant.install(pair.old)
        reading = await reading_what_the_standby_lacks(pair, relay)
        if reading.done():
            relay.publish(reading.result())
        pair.fail_over()
        await asyncio.gather(reading, return_exceptions=True)
        add(pair.new, *NEW)
        await relay.carry()
        return relay.wire


async def test_a_failover_to_a_synchronous_standby_leaves_no_phantom(synchronous: Pair) -> None:
    assert await published_before_the_standby_has_it(synchronous) == NEW == logged(synchronous.new)


async def test_a_tick_that_does_not_wait_for_the_standby_would_leave_phantoms(synchronous: Pair) -> None:
    assert (await published_before_the_standby_has_it(synchronous, NOT_SYNCHRONOUS))[: len(OLD)] == OLD


async def cancelled_while_it_waits_for_the_standby(pair: Pair) -> Sequence[Entry]:
    """Cancel a tick that is committed here and waits for the standby: PostgreSQL reports success, with a warning."""
    async with SlowRelay(pair.pooled) as relay:
        await relay.store.take()
        reading = await reading_what_the_standby_lacks(pair, relay)
        for pid in waiting_for_the_standby(pair.old):
            run(pair.old, "SELECT pg_cancel_backend(%s)", [pid])
        return await reading


async def test_a_tick_that_is_cancelled_in_doubt_gives_nothing_out(synchronous: Pair) -> None:
    with pytest.raises(LaneLost, match="its commit is in doubt"):
        await cancelled_while_it_waits_for_the_standby(synchronous)


async def test_a_warning_that_is_overlooked_would_leave_phantoms(
    synchronous: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "run_sure", Connection.run)
    given = await cancelled_while_it_waits_for_the_standby(synchronous)
    assert [entry.event_type for entry in given] == OLD
